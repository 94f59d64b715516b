/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The results as a picture by gnuplot: GB/s over payload sizes, a panel for each direction. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *ending(const char *file)
{
    const char *dot = strrchr(file, '.');
    return dot ? dot + 1 : "";
}

int ibx_bw_plot_check(const char *file, struct ibx_error *err)
{
    if (strcmp(ending(file), "svg") && strcmp(ending(file), "png"))
        return ibx_error_set(err, -EINVAL, "\"%.64s\" does not end in .svg or .png", file);
    if (system("command -v gnuplot >/dev/null"))
        return ibx_error_set(err, -ENOENT, "it needs gnuplot, which is not installed");
    return 0;
}

static bool has_points(const struct bw_results *results, enum bw_op op)
{
    return ibx_bw_results_measured(results, op, 0, results->size_count);
}

static void write_panel(const struct bw_results *results, enum bw_op op, FILE *to)
{
    char label[BW_LABEL_TEXT];
    fprintf(to, "set title '%s'\nplot ",
            op == BW_H2D ? "H2D: to the device" : "D2H: from the device");
    for (unsigned path = 0; path < results->path_count; path++)
        fprintf(to, "%s'-' using 1:2 with linespoints linewidth 2 title '%s'", path ? ", " : "",
                ibx_bw_path_label(results, path, label));
    fputc('\n', to);
    for (unsigned path = 0; path < results->path_count; path++) {
        for (unsigned size = 0; size < results->size_count; size++) {
            struct bw_summary s = ibx_bw_results_summary(results, path, op, size);
            if (s.calls)
                fprintf(to, "%zu %.6g\n", results->sizes[size], s.gbps);
        }
        fputs("e\n", to);
    }
}

static void write_script(const struct bw_results *results, const char *kind, FILE *to)
{
    fprintf(to, "set terminal %s size 1200,500\n", !strcmp(kind, "svg") ? "svg" : "pngcairo");
    fputs("set logscale x 2\nset format x '%.0b %BB'\nset grid\nset key left top\n"
          "set xlabel 'payload'\nset ylabel 'GB/s of the median call'\nset yrange [0:*]\n",
          to);
    fprintf(to, "set multiplot layout 1,%d\n",
            has_points(results, BW_H2D) + has_points(results, BW_D2H));
    for (unsigned op = 0; op < BW_OPS; op++) {
        if (has_points(results, (enum bw_op)op))
            write_panel(results, (enum bw_op)op, to);
    }
    fputs("unset multiplot\n", to);
}

int ibx_bw_plot_write(const struct bw_results *results, const char *file, struct ibx_error *err)
{
    struct bw_file picture;
    char command[64];
    if (!has_points(results, BW_H2D) && !has_points(results, BW_D2H))
        return 0; /* stopped before there was anything to draw */
    int rc = ibx_bw_file_open(&picture, file, err);
    if (rc)
        return rc;
    /* The file is passed by its descriptor, since its name could have a meaning for the shell. */
    snprintf(command, sizeof(command), "exec gnuplot >/proc/%d/fd/%d", getpid(),
             fileno(picture.out));
    FILE *script = popen(command, "w");
    if (script)
        write_script(results, ending(file), script);
    if (!script || pclose(script))
        rc = ibx_error_set(err, -EIO, "gnuplot failed on %s", file);
    return ibx_bw_file_close(&picture, rc, err);
}
