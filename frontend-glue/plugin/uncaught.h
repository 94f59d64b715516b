// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Exceptions that a handler of GVirtuS's leaves in its client's thread, as for a request that is
// too short, would end the back end and all its clients' programs. So they end that client alone.
#ifndef IBX_FRONTEND_GLUE_PLUGIN_UNCAUGHT_H
#define IBX_FRONTEND_GLUE_PLUGIN_UNCAUGHT_H

// Once, in the process that serves.
void ibx_uncaught_prepare();

// From now on, and until it is called with NULL, such an exception in the calling thread calls
// `end` with what the exception says, and ends the thread.
void ibx_uncaught_ends(void (*end)(void *client, const char *what), void *client);

#endif
