/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What tune has measured and chosen, for people. */
#include "gpudirect/gpudirect.h"
#include "tools/ib-bw/tune.h"

#include <string.h>

#define VALUE 12 /* columns */

bool ibx_tune_measured(const struct tune *tune, unsigned w, unsigned d)
{
    const struct tune_way *way = &tune->ways[w];
    for (unsigned i = 0; i < tune->size_count; i++) {
        if (way->times[d][i] > 0)
            return true;
    }
    return false;
}

static void print_block(const struct tune *tune, unsigned d, FILE *out)
{
    char text[BW_SIZE_TEXT];
    fprintf(out, "%s, microseconds\n%9s", ibx_bw_op_titles[d], "bytes");
    for (unsigned w = 0; w < tune->way_count; w++) {
        if (ibx_tune_measured(tune, w, d))
            fprintf(out, "%*s", VALUE, tune->ways[w].name);
    }
    fputc('\n', out);
    for (unsigned i = 0; i < tune->size_count; i++) {
        fprintf(out, "%9s", ibx_bw_size_print(tune->sizes[i], text));
        for (unsigned w = 0; w < tune->way_count; w++) {
            const double time = tune->ways[w].times[d][i];
            if (time > 0)
                fprintf(out, "%*.1f", VALUE, time);
            else if (ibx_tune_measured(tune, w, d))
                fprintf(out, "%*s", VALUE, "-");
        }
        fputc('\n', out);
    }
    fputc('\n', out);
}

static void print_choice(const struct tune *tune, unsigned d, FILE *out)
{
    const struct ibx_choice *choice = &tune->result.choice;
    unsigned threads = choice->threads ? choice->threads : ibx_copy_threads_count();
    char text[256];
    bool direct = false;
    for (unsigned w = 0; w < tune->way_count; w++)
        direct = direct || (tune->ways[w].kind == TUNE_DIRECT && ibx_tune_measured(tune, w, d));
    ibx_tuning_describe(choice, d, tune->no_threads[0] ? 0 : threads, direct, text, sizeof(text));
    fprintf(out, "%s: %s\n", d ? "D2H" : "H2D", text);
}

/* Prints why ways were refused; a reason that several ways in a row have, once. */
static void print_refused(const struct tune *tune, FILE *out)
{
    const char *before = "";
    for (unsigned w = 0; w < tune->way_count; w++) {
        const struct tune_way *way = &tune->ways[w];
        if (way->refused[0] && strcmp(before, way->refused))
            fprintf(out, "refused: %s: %s\n", way->name, way->refused);
        before = way->refused;
    }
    if (tune->no_threads[0])
        fprintf(out, "refused: threads: %s\n", tune->no_threads);
    if (tune->no_direct[0])
        fprintf(out, "refused: direct: %s\n", tune->no_direct);
}

void ibx_tune_print(const struct tune *tune, FILE *out)
{
    const struct ibx_tuning_machine *place = &tune->result.machine;
    fprintf(out, "%s, CUDA %s, on %s; two processes over %s\n", place->gpu, place->driver,
            place->host, tune->path);
    if (tune->far_path[0])
        fprintf(out, "far, direct: through chunks and without any, over %s\n", tune->far_path);
    fputc('\n', out);
    for (unsigned d = 0; d < 2; d++)
        print_block(tune, d, out);
    for (unsigned d = 0; d < 2; d++)
        print_choice(tune, d, out);
    print_refused(tune, out);
}
