/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU's command line gives to a guest, what its processors show, and which differences keep a
 * VM from migrating. */
#include "migrate/preflight/description.h"
#include "tests/fixtures/unit.h"

#include <stdlib.h>
#include <string.h>

/* A description by these arguments, written with | behind each. */
static json_t *described(const char *arguments)
{
    char *line = strdup(arguments);
    const size_t length = strlen(line);
    json_t *description = json_object();
    for (char *c = line; *c; c++)
        *c = *c == '|' ? '\0' : *c;
    FILE *file = fmemopen(line, length, "r");
    assert_non_null(file);
    ibx_options_read(file, description);
    fclose(file);
    free(line);
    return description;
}

static void is_described(const char *arguments, const char *as)
{
    json_t *description = described(arguments);
    char *text = json_dumps(description, JSON_COMPACT | JSON_SORT_KEYS);
    for (char *c = text; *c; c++)
        *c = *c == '"' ? '\'' : *c;
    assert_string_equal(text, as);
    free(text);
    json_decref(description);
}

#define PLAIN(icount, clock)                                                                       \
    "{'actions':{},'fw_cfg':{},'icount':'" icount "','rtc-clock':'" clock "','smbios':[]}"

static void clocks_are_read_as_qemu_reads_them(NO_STATE)
{
    is_described("qemu|", PLAIN("", "host"));
    is_described("qemu|-icount|shift=7|", PLAIN("shift=7", "host"));
    is_described("qemu|--icount|0x7,sleep=off|", PLAIN("shift=7,sleep=off", "host"));
    is_described("qemu|-icount|7,sleep=on|", PLAIN("shift=7", "host"));
    is_described("qemu|-icount|auto,align=on|", PLAIN("shift=auto", "host"));
    is_described("qemu|-icount|sleep=no|-icount|1|", PLAIN("shift=1,sleep=off", "host"));
    is_described("qemu|-rtc|base=utc,clock=vm|-rtc|driftfix=slew|", PLAIN("", "vm"));
    is_described("qemu|-rtc|clock=vm|-rtc|clock=rt|", PLAIN("", "rt"));
    is_described("qemu|-rtc|clockwise=vm|-icount|shiftless|", PLAIN("shift=auto", "host"));
    is_described("qemu|-append|clock=vm|-rtc|base=2000-01-01,xclock=rt|", PLAIN("", "host"));
    /* A value may look like an option, and an option may lack its value. */
    is_described("qemu|-rtc|-icount|7|", PLAIN("", "host"));
    is_described("qemu|-icount|", PLAIN("", "host"));
    is_described("qemu|-|--|", PLAIN("", "host"));
}

static void files_and_tables_are_read(NO_STATE)
{
    json_t *one = described("qemu|-fw_cfg|name=opt/a,string=x,,y|-fw_cfg|opt/b,file=/b|"
                            "-smbios|type=1,serial=1|-smbios|file=/t|"),
           *same = described("qemu|-smbios|type=1,serial=1|-fw_cfg|string=x,,y,name=opt/a|"
                             "-fw_cfg|opt/b,file=/elsewhere|"),
           *other = described("qemu|-fw_cfg|opt/a,string=x,,z|");
    assert_true(json_equal(one, same));
    const json_t *files = json_object_get(one, "fw_cfg");
    assert_int_equal(json_object_size(files), 2);
    assert_int_equal(strlen(ibx_member(files, "opt/a")), 16);
    assert_string_equal(ibx_member(files, "opt/b"), "");
    assert_string_not_equal(ibx_member(files, "opt/a"),
                            ibx_member(json_object_get(other, "fw_cfg"), "opt/a"));
    json_decref(one);
    json_decref(same);
    json_decref(other);
}

static void actions_are_read_as_qemu_reads_them(NO_STATE)
{
    json_t *one = described("qemu|-action|panic=none,reboot=reset|-no-reboot|-watchdog-action|"
                            "poweroff|-no-shutdown|-action|shutdown=poweroff,panic=pause|");
    char *text = json_dumps(json_object_get(one, "actions"), JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"panic\":\"pause\",\"reboot\":\"shutdown\","
                              "\"shutdown\":\"poweroff\",\"watchdog\":\"poweroff\"}");
    free(text);
    json_decref(one);
}

/* What a file says is not known, nor is what is not there. */
static void options_from_elsewhere_are_not_described(NO_STATE)
{
    is_described("qemu|-readconfig|/etc/vm.cfg|-icount|1|", "{}");
    is_described("qemu|-set|rtc.clock=vm|", "{}");
}

static struct ibx_blockers refused;

static void compare(const char *source, const char *destination, bool same_version)
{
    json_error_t why;
    char *texts[] = {strdup(source), strdup(destination)};
    json_t *all[2];
    for (unsigned i = 0; i < 2; i++) {
        for (char *c = texts[i]; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        all[i] = json_loads(texts[i], 0, &why);
        if (!all[i])
            fail_msg("%s: %s", texts[i], why.text);
        free(texts[i]);
    }
    memset(&refused, 0, sizeof(refused));
    ibx_compare(&(struct ibx_comparison){.source = all[0],
                                         .destination = all[1],
                                         .same_version = same_version,
                                         .blockers = &refused});
    json_decref(all[0]);
    json_decref(all[1]);
}

static void only(const char *source, const char *destination, const char *words)
{
    compare(source, destination, true);
    if (refused.count != 1 || refused.note_count || !strstr(refused.reasons[0], words))
        fail_msg("%zu: %s\nand not: %s", refused.count, refused.reasons[0], words);
}

static void only_noted(const char *source, const char *destination, const char *words)
{
    compare(source, destination, true);
    if (refused.count || refused.note_count != 1 || !strstr(refused.notes[0], words))
        fail_msg("%zu: %s\nand not: %s", refused.note_count, refused.notes[0], words);
}

static void nothing(const char *source, const char *destination, bool same_version)
{
    compare(source, destination, same_version);
    if (refused.count || refused.note_count)
        fail_msg("%s and %s: %s%s", source, destination, refused.reasons[0], refused.notes[0]);
}

static void differences_have_a_sentence_each(NO_STATE)
{
    only("{'icount':'shift=7'}", "{'icount':''}",
         "the guest's clock goes by -icount shift=7 here and without -icount at the destination");
    only("{'icount':''}", "{'icount':'shift=auto'}",
         "goes without -icount here and by -icount shift=auto at the destination");
    only("{'rtc-clock':'vm'}", "{'rtc-clock':'host'}", "start its QEMU with -rtc clock=vm");
    only("{'fw_cfg':{'opt/a':'1','opt/b':''}}", "{'fw_cfg':{'opt/b':'2'}}",
         "the destination lacks opt/a: start its QEMU with the same -fw_cfg");
    only("{'fw_cfg':{'opt/a':'1','opt/b':'','opt/c':'','opt/d':'','opt/e':''}}", "{'fw_cfg':{}}",
         "the destination lacks opt/a, opt/b, opt/c and 2 more: start");
    only("{'fw_cfg':{}}", "{'fw_cfg':{'opt/b':'2'}}", "has opt/b, which the VM here has not");
    only("{'fw_cfg':{'opt/b':'1'}}", "{'fw_cfg':{'opt/b':'2'}}", "has another text in opt/b");
    only("{'user-networks':['-netdev user,net=10.0.2.0']}",
         "{'user-networks':['-netdev user,net=10.0.3.0']}", "-netdev user,net=10.0.3.0 at the");
    only_noted("{'actions':{}}", "{'actions':{'reboot':'shutdown','panic':'shutdown'}}",
               "-action reboot=reset here and reboot=shutdown at the destination");
    only_noted("{'actions':{'panic':'none'}}", "{'actions':{}}", "panic=shutdown at the");
    nothing("{'actions':{'watchdog':'reset'}}", "{'actions':{}}", true);
    nothing("{'actions':{'watchdog':'none'}}", "{}", true);
    only_noted("{'smbios':[['1','a'],['2','b']]}", "{'smbios':[['2','b']]}", "-smbios type=1");
    only_noted("{'smbios':[['2','b']]}", "{'smbios':[['2','b'],['1','a']]}", "-smbios type=1");
}

#define CPU(type, more) "{'cpu':'" type "-x86_64-cpu','cpu-properties':{" more "}}"

static void processors_show_the_same(NO_STATE)
{
    only(CPU("qemu64", "'model':5,'l3-cache':true"), CPU("qemu64", "'model':6,'l3-cache':false"),
         "the vCPUs differ: model is 5 here and 6, l3-cache is on here and off at the destination: "
         "start its QEMU with the same -cpu as here");
    only(CPU("qemu64", "'level':4,'family':1,'kvm':true,'pmu':true"),
         CPU("qemu64", "'level':3,'family':2,'kvm':false,'pmu':false"),
         "level is 4 here and 3, family is 1 here and 2, kvm is on here and off at the destination "
         "and 1 more: start");
    only(CPU("host", "'vendor':'GenuineIntel'"), CPU("host", "'vendor':'AuthenticAMD'"),
         "vendor is GenuineIntel here and AuthenticAMD");
    only(CPU("host", "'phys-bits':46"), CPU("host", "'phys-bits':39"), "phys-bits is 46 here and");
    only_noted(CPU("host", "'model':85,'model-id':'A'"), CPU("host", "'model':106,'model-id':'B'"),
               "(model is 85 here and 106, model-id is A here and B at the destination)");
    only_noted(CPU("max", "'stepping':1"), CPU("max", "'stepping':2"),
               "and so does what -cpu host or max shows");
    /* Another version of KVM has another number of leaves on the same processor. */
    only_noted(CPU("host", "'level':31,'xlevel':2147483682"),
               CPU("host", "'level':30,'xlevel':2147483681"),
               "(level is 31 here and 30, xlevel is 2147483682 here and 2147483681 at the");
    only(CPU("qemu64", "'level':13"), CPU("qemu64", "'level':5"), "level is 13 here and 5 at the");
    nothing(CPU("qemu64", "'level':5"), CPU("qemu64", "'level':13"), true);
    nothing(CPU("qemu64", "'kvm':true"), CPU("qemu64", "'kvm':false"), false);
    nothing(CPU("qemu64", "'kvm':true"), CPU("qemu64", ""), true);
    compare(CPU("qemu64", "'vendor':'a'"), CPU("qemu64", "'vendor':'b'"), false);
    assert_int_equal(refused.count, 1);
}

/* An earlier release does not describe them, and a liar something else. */
static void odd_descriptions_do_no_harm(NO_STATE)
{
    static const char *const odd[] = {
        "{}", "{'icount':1,'rtc-clock':[],'fw_cfg':[],'smbios':{},'user-networks':1}",
        "{'cpu':'a','cpu-properties':[],'fw_cfg':{'a':1},'smbios':[1,[],[2],'x']}",
        "{'cpu':'a','cpu-properties':{'model':[],'vendor':{},'level':'x'}}"};
    for (unsigned i = 0; i < COUNT(odd); i++)
        for (unsigned k = 0; k < COUNT(odd); k++)
            compare(odd[i], odd[k], (i + k) & 1);
    nothing("{'icount':'shift=1','rtc-clock':'vm','fw_cfg':{'a':''},'smbios':[['1','a']]}", "{}",
            true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clocks_are_read_as_qemu_reads_them),
        cmocka_unit_test(files_and_tables_are_read),
        cmocka_unit_test(actions_are_read_as_qemu_reads_them),
        cmocka_unit_test(options_from_elsewhere_are_not_described),
        cmocka_unit_test(differences_have_a_sentence_each),
        cmocka_unit_test(processors_show_the_same),
        cmocka_unit_test(odd_descriptions_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
