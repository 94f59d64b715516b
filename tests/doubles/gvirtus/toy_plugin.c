/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What ibx-gvirtus takes for a communicator: small, so that it is copied quickly. */
#ifdef PLUGIN
__attribute__((visibility("default"))) void create_communicator(void);
void create_communicator(void) {}
#endif
