/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Fault injection for tests: stands between the core and the endpoint of an established connection,
 * and fails as struct ibx_injected_faults tells it. Nothing in the product includes this header.
 */
#ifndef IBX_TRANSPORT_FAULT_INJECTION_H
#define IBX_TRANSPORT_FAULT_INJECTION_H

#include "transport/transport.h"

/* The faults of one connection. Any thread may change any field at any time. Posted chunks and sent
 * messages count when they leave; received messages and the bytes of READs count when the core gets
 * them. A call that the endpoint refuses with -EAGAIN counts nothing, because the core repeats it.
 */
struct ibx_injected_faults {
    _Atomic unsigned delay_polls; /* polls for which completions and messages wait, in order */
    _Atomic unsigned fail_in; /* the n-th chunk from now fails with -EIO (1: the next), 0: none */
    _Atomic unsigned corrupt_in;    /* the n-th READ or message from now has one bit flipped */
    _Atomic unsigned drop_in;       /* the n-th message from now is lost */
    _Atomic unsigned disconnect_in; /* the n-th chunk or message from now breaks the connection */
    _Atomic unsigned long seen;     /* chunks and messages that passed */
};

/* `faults` must outlive the connection. ibx_remote_hold() does not work with it, because no copy
 * may pass by. -ENOTCONN: the connection is not established. */
int ibx_fault_injection_attach(struct ibx_conn *conn, struct ibx_injected_faults *faults,
                               struct ibx_error *err);

#endif
