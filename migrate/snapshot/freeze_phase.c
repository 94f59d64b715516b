/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a VM has stayed stopped since the moment of its snapshot, by QEMU's events. */
#include "migrate/snapshot/freeze.h"

#include "migrate/common/vm.h"

static const struct ibx_state freeze_states[] = {
    [FREEZE_BEFORE] = {"before", IBX_TO(FREEZE_BEGUN), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [FREEZE_BEGUN] = {"begun", IBX_TO(FREEZE_BEGUN) | IBX_TO(FREEZE_STOPPED), IBX_STATE_FINAL},
    [FREEZE_STOPPED] = {"stopped",
                        IBX_TO(FREEZE_BEGUN) | IBX_TO(FREEZE_RESET) | IBX_TO(FREEZE_TAKEN) |
                            IBX_TO(FREEZE_CONTINUED),
                        IBX_STATE_FINAL},
    [FREEZE_RESET] = {"reset", IBX_TO(FREEZE_BEGUN) | IBX_TO(FREEZE_TAKEN), IBX_STATE_FINAL},
    [FREEZE_TAKEN] = {"taken", IBX_TO(FREEZE_BEGUN), IBX_STATE_FINAL},
    [FREEZE_CONTINUED] = {"continued", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table freeze_table = IBX_STATE_TABLE("freeze", freeze_states);

void ibx_freeze_phase_begin(struct ibx_state_machine *phase)
{
    ibx_state_begin(phase, &freeze_table, FREEZE_BEFORE);
}

static bool resets_itself(json_t *event)
{
    return ibx_vm_event_is(event, "RESET", NULL) &&
           json_is_true(json_object_get(json_object_get(event, "data"), "guest"));
}

/* Whether after this event the VM's memory may no longer fit the state that QEMU has written. */
static bool spoils(json_t *event)
{
    return ibx_vm_event_is(event, "RESUME", NULL) || ibx_vm_event_is(event, "RESET", NULL) ||
           ibx_vm_event_is(event, "MIGRATION", "setup");
}

void ibx_freeze_phase_note(struct ibx_state_machine *phase, json_t *event, bool begins)
{
    if (begins && ibx_vm_event_is(event, "MIGRATION", "setup"))
        ibx_state_move(phase, FREEZE_BEGUN);
    else if (phase->now == FREEZE_BEGUN && ibx_vm_event_is(event, "MIGRATION", "completed"))
        ibx_state_move(phase, FREEZE_STOPPED);
    else if (phase->now == FREEZE_STOPPED && resets_itself(event))
        ibx_state_move(phase, FREEZE_RESET);
    else if ((phase->now == FREEZE_STOPPED || phase->now == FREEZE_RESET) &&
             !resets_itself(event) && spoils(event))
        ibx_state_move(phase, FREEZE_TAKEN);
}
