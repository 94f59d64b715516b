/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The part of GVirtuS's library that takes what a handler has returned. */
struct gvirtus_result {
    long exit_code;
    double seconds;
};

void gvirtus_take_result(struct gvirtus_result *result);

__attribute__((visibility("default"), noinline)) void
gvirtus_take_result(struct gvirtus_result *result)
{
    *(volatile double *)&result->seconds = 0;
}
