/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a VM still has the images that the destination has compared. Another client may take a
 * snapshot of a disk meanwhile, or change a medium: the VM would write to an image that the
 * destination does not have, and lose that there. */
#include "migrate/preflight/description.h"

#include <stdio.h>

#define LAYERS_MAX 256 /* of one disk */

/* The image that is written to, its size and those behind it: what one answer of QEMU's tells. */
static json_t *images_of(const json_t *inserted)
{
    const json_t *image = json_object_get(inserted, "image");
    json_t *names = json_array();
    for (unsigned i = 0; image && i < LAYERS_MAX; i++) {
        json_array_append_new(names, ibx_json_text(ibx_member(image, "filename")));
        image = json_object_get(image, "backing-image");
    }
    image = json_object_get(inserted, "image");
    return json_pack("{s:o, s:o, s:I, s:b}", "images", names, "file",
                     ibx_json_text(ibx_member(inserted, "file")), "bytes",
                     json_integer_value(json_object_get(image, "virtual-size")), "read-only",
                     json_is_true(json_object_get(inserted, "ro")));
}

int ibx_preflight_images(struct ibx_qmp *qmp, json_t **images, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    json_t *list, *item, *found = json_object();
    size_t index;
    int rc = ibx_qmp_execute(qmp, "query-block", NULL, &list, deadline_ns, err);
    if (rc) {
        json_decref(found);
        return rc;
    }
    json_array_foreach(list, index, item)
    {
        const json_t *inserted = json_object_get(item, "inserted");
        if (*ibx_member(item, "qdev"))
            json_object_set_new(found, ibx_member(item, "qdev"),
                                inserted ? images_of(inserted) : json_object());
    }
    json_decref(list);
    *images = found;
    return 0;
}

/* For a person. */
static void show(const json_t *disk, char *text, size_t size)
{
    if (!*ibx_member(disk, "file"))
        snprintf(text, size, "none");
    else
        snprintf(text, size, "%.160s (%" JSON_INTEGER_FORMAT " bytes, layers: %zu%s)",
                 ibx_member(disk, "file"), json_integer_value(json_object_get(disk, "bytes")),
                 json_array_size(json_object_get(disk, "images")),
                 json_is_true(json_object_get(disk, "read-only")) ? ", read-only" : "");
}

static void add(const char *name, const json_t *now, const json_t *compared,
                struct ibx_blockers *blockers)
{
    char is[256], was[256];
    show(now, is, sizeof(is));
    show(compared, was, sizeof(was));
    ibx_blockers_add(blockers,
                     "the image of the disk %.160s is %s, and the destination has compared %s: "
                     "another client of QEMU has changed it meanwhile; give the destination's QEMU "
                     "the same image and migrate again",
                     name, is, was);
}

int ibx_preflight_same_images(struct ibx_qmp *qmp, const json_t *compared,
                              struct ibx_blockers *blockers, uint64_t deadline_ns,
                              struct ibx_error *err)
{
    json_t *now, *disk;
    const char *name;
    int rc = ibx_preflight_images(qmp, &now, deadline_ns, err);
    if (rc)
        return rc;
    json_object_foreach(now, name, disk)
    {
        const json_t *before = json_object_get(compared, name);
        if (before && !json_equal(disk, before))
            add(name, disk, before, blockers);
    }
    json_decref(now);
    return 0;
}
