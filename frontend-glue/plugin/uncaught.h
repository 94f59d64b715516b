// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A handler of GVirtuS may leave an exception uncaught in its client's thread, as for a request
// that is too short, or return no result (NULL), which GVirtuS follows. That would end the back
// end, and so the programs of all clients. With this file it ends only that client.
#ifndef IBX_FRONTEND_GLUE_PLUGIN_UNCAUGHT_H
#define IBX_FRONTEND_GLUE_PLUGIN_UNCAUGHT_H

// Once, in the process that serves.
void ibx_uncaught_prepare();

// From now on such a failure in the calling thread calls `end` with what the exception says, and
// ends the thread. `end` null: no longer.
void ibx_uncaught_ends(void (*end)(void *client, const char *what), void *client);

#endif
