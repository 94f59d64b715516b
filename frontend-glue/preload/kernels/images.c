/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/kernels/images.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC     0x466243b1u
#define FAT_MAGIC         0xba55ed50u
#define ENTRY_VERSION     0x0101u
#define ENTRY_HEAD        64u
#define OPTIONS           16u   /* bytes of an (empty) options entry after the header of PTX */
#define FLAGS             0x11u /* 64 bits, Linux */
#define CUDA_ENTRY        0x10u /* st_other: a kernel, not a device function */
#define CUDA_MANAGED      0x04u /* st_other: a variable that is declared __managed__ */
#define INFO_SIZED        4u    /* format of an entry of .nv.info whose data follows it */
#define INFO_PARAMETER    0x17u
#define INFO_PARAMETER_V2 0x45u /* used for kernels with more than 4 KiB of parameters */
#define INFO_BYTES        12u   /* bytes of a parameter entry of either kind */
#define FEW_PARAMETERS    32u   /* for so many there is room at first: all would be 384 KiB */
/* The driver's area for arguments begins at a multiple of so many bytes, and not of more. */
#define AREA_ALIGNED 16u

/* Whether n bytes at offset `at` are within `size` bytes. */
static bool holds(size_t size, uint64_t at, uint64_t n)
{
    return at <= size && n <= size - at;
}

/* ------------------------------------------------------------------------------- how long it is */

/* The length up to the end of its last part; 0: it is no cubin within `most` bytes. */
static size_t measure_cubin(const uint8_t *image, size_t most)
{
    Elf64_Ehdr head;
    Elf64_Shdr section;
    if (most < sizeof(head))
        return 0;
    memcpy(&head, image, sizeof(head));
    const uint64_t parts[][2] = {{head.e_shoff, (uint64_t)head.e_shnum * sizeof(section)},
                                 {head.e_phoff, (uint64_t)head.e_phnum * head.e_phentsize}};
    size_t end = sizeof(head);
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_shentsize != sizeof(section))
        return 0;
    for (unsigned i = 0; i < 2; i++) {
        if (!holds(most, parts[i][0], parts[i][1]))
            return 0;
        end = parts[i][0] + parts[i][1] > end ? parts[i][0] + parts[i][1] : end;
    }
    for (unsigned i = 0; i < head.e_shnum; i++) {
        memcpy(&section, image + head.e_shoff + i * sizeof(section), sizeof(section));
        if (section.sh_type == SHT_NOBITS)
            continue;
        if (!holds(most, section.sh_offset, section.sh_size))
            return 0;
        end = section.sh_offset + section.sh_size > end ? section.sh_offset + section.sh_size : end;
    }
    return end;
}

static size_t measure_fat(const uint8_t *image, size_t most)
{
    uint64_t length;
    uint16_t head;
    size_t n;
    if (most < IBX_IMAGE_FAT_HEAD)
        return 0;
    memcpy(&head, image + 6, sizeof(head));
    memcpy(&length, image + 8, sizeof(length));
    return head == IBX_IMAGE_FAT_HEAD && !__builtin_add_overflow(length, head, &n) && n <= most ? n
                                                                                                : 0;
}

/* The length with its NUL. */
static size_t measure_ptx(const char *text, size_t most)
{
    const size_t n = strnlen(text, most);
    const bool begins = isspace((unsigned char)*text) || *text == '.' || *text == '/';
    return begins && n < most && strstr(text, ".version") ? n + 1 : 0;
}

enum ibx_image_kind ibx_image_measure(const void **code, size_t most, size_t *n)
{
    enum ibx_image_kind kind;
    uint32_t magic = 0;
    memcpy(&magic, *code, most < sizeof(magic) ? most : sizeof(magic));
    if (magic == WRAPPER_MAGIC && most == SIZE_MAX) {
        memcpy(code, (const uint8_t *)*code + offsetof(struct ibx_image_wrapper, data),
               sizeof(*code));
        memcpy(&magic, *code, sizeof(magic));
    }
    if (magic == FAT_MAGIC) {
        kind = IBX_IMAGE_FAT;
        *n = measure_fat(*code, most);
    } else if (!memcmp(&magic, ELFMAG, SELFMAG)) {
        kind = IBX_IMAGE_CUBIN;
        *n = measure_cubin(*code, most);
    } else {
        kind = IBX_IMAGE_PTX;
        *n = measure_ptx(*code, most);
    }
    return *n && *n <= PTRDIFF_MAX / 2 ? kind : IBX_IMAGE_NONE;
}

/* ------------------------------------------------------------------------------- a fat binary */

/* The number in "sm_90a" and the like. */
static unsigned target_of(const char *text)
{
    const char *at = strstr(text, ".target");
    at = at ? strstr(at, "sm_") : NULL;
    return at ? (unsigned)strtoul(at + 3, NULL, 10) : 0;
}

/* Parses "9.0" into major and minor. */
static void version_of(const char *text, uint16_t version[2])
{
    const char *at = strstr(text, ".version");
    char *behind = NULL;
    version[0] = at ? (uint16_t)strtoul(at + strlen(".version"), &behind, 10) : 0;
    version[1] = at && *behind == '.' ? (uint16_t)strtoul(behind + 1, NULL, 10) : 0;
}

/* From ABI 8 on the architecture is in another place. */
static unsigned architecture_of(const Elf64_Ehdr *head)
{
    return head->e_ident[EI_ABIVERSION] >= 8 ? head->e_flags >> 8 & 0xffff : head->e_flags & 0xff;
}

/* Writes an options entry for PTX in any case, because the driver reads it in any case. */
size_t ibx_image_head(uint8_t head[IBX_IMAGE_HEADER], enum ibx_image_kind kind, const void *image,
                      size_t n)
{
    const bool cubin = kind == IBX_IMAGE_CUBIN;
    Elf64_Ehdr elf = {.e_flags = 0};
    uint16_t version[2] = {1, 0};
    if (cubin)
        memcpy(&elf, image, sizeof(elf));
    else
        version_of(image, version);
    const struct ibx_image_entry e = {
        .kind = cubin ? IBX_IMAGE_OF_CUBIN : IBX_IMAGE_OF_PTX,
        .version = ENTRY_VERSION,
        .head = ENTRY_HEAD + (cubin ? 0 : OPTIONS),
        .n = (n + 7) & ~(size_t)7,
        .options_at = cubin ? 0 : ENTRY_HEAD,
        .minor = cubin ? elf.e_ident[EI_ABIVERSION] : version[1],
        .major = version[0],
        .architecture = cubin ? architecture_of(&elf) : target_of(image),
        .flags = FLAGS,
    };
    const uint16_t version_and_head[] = {1, IBX_IMAGE_FAT_HEAD};
    const uint32_t magic = FAT_MAGIC;
    const uint64_t all = e.n + e.head;
    const uint32_t options[OPTIONS / 4] = {ENTRY_HEAD + OPTIONS / 2};
    memcpy(head, &magic, 4);
    memcpy(head + 4, version_and_head, 4);
    memcpy(head + 8, &all, 8);
    memcpy(head + IBX_IMAGE_FAT_HEAD, &e, sizeof(e));
    memcpy(head + IBX_IMAGE_FAT_HEAD + ENTRY_HEAD, options, e.head - ENTRY_HEAD);
    return IBX_IMAGE_FAT_HEAD + e.head;
}

struct ibx_image_wrapper ibx_image_wrap(const void *fat)
{
    return (struct ibx_image_wrapper){WRAPPER_MAGIC, 1, fat, NULL};
}

/* ------------------------------------------------------------------------------- what is in it */

static const char *text_at(const uint8_t *image, const Elf64_Shdr *texts, uint32_t at)
{
    const char *text = (const char *)image + texts->sh_offset + at;
    return texts->sh_type == SHT_STRTAB && at < texts->sh_size &&
                   memchr(text, 0, texts->sh_size - at)
               ? text
               : NULL;
}

static bool begins(const char *text, const char *with)
{
    return text && !strncmp(text, with, strlen(with));
}

struct cubin {
    const uint8_t *image;
    size_t n;
    const Elf64_Shdr *sections;
    unsigned count;
    const Elf64_Shdr *names; /* the section with the names of sections */
};

static void look_at_symbol(const struct cubin *c, const Elf64_Sym *symbol, const char *name,
                           ibx_image_found *found, void *argument)
{
    const unsigned type = ELF64_ST_TYPE(symbol->st_info);
    if (!name || !*name || !symbol->st_shndx || symbol->st_shndx >= c->count)
        return;
    const char *section = text_at(c->image, c->names, c->sections[symbol->st_shndx].sh_name);
    const bool constant = begins(section, ".nv.constant");
    if (type == STT_FUNC && symbol->st_other & CUDA_ENTRY)
        found(name, strlen(name), 0, IBX_IMAGE_KERNEL, argument);
    else if (type == STT_OBJECT && symbol->st_size && (constant || begins(section, ".nv.global")))
        found(name, strlen(name), symbol->st_size,
              constant                          ? IBX_IMAGE_CONSTANT
              : symbol->st_other & CUDA_MANAGED ? IBX_IMAGE_MANAGED
                                                : IBX_IMAGE_VARIABLE,
              argument);
}

/* Whether the section is within the cubin. */
static bool is_within(const struct cubin *c, const Elf64_Shdr *section)
{
    return section->sh_type == SHT_NOBITS || holds(c->n, section->sh_offset, section->sh_size);
}

/* The sections themselves are not checked, except the one with the names: some cubins have tens of
 * thousands. */
static bool begin_cubin(const uint8_t *image, size_t n, struct cubin *begun)
{
    const Elf64_Ehdr *head = (const void *)image;
    if (n < sizeof(*head) || memcmp(image, ELFMAG, SELFMAG) != 0 ||
        head->e_shentsize != sizeof(Elf64_Shdr) || head->e_shoff % 8 ||
        !holds(n, head->e_shoff, (uint64_t)head->e_shnum * sizeof(Elf64_Shdr)) ||
        head->e_shstrndx >= head->e_shnum)
        return false;
    const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
    *begun = (struct cubin){image, n, sections, head->e_shnum, &sections[head->e_shstrndx]};
    return is_within(begun, begun->names);
}

/* All sections are within the cubin. */
static bool open_cubin(const uint8_t *image, size_t n, struct cubin *c)
{
    if (!begin_cubin(image, n, c))
        return false;
    for (unsigned i = 0; i < c->count; i++)
        if (!is_within(c, &c->sections[i]))
            return false;
    return true;
}

static bool look_at_cubin(const uint8_t *image, size_t n, ibx_image_found *found, void *argument)
{
    struct cubin c;
    if (!open_cubin(image, n, &c))
        return false;
    for (unsigned i = 0; i < c.count; i++) {
        const Elf64_Shdr *s = &c.sections[i];
        if (s->sh_type != SHT_SYMTAB || s->sh_link >= c.count || s->sh_offset % 8)
            continue;
        const Elf64_Sym *symbols = (const void *)(image + s->sh_offset);
        for (size_t k = 0; k < s->sh_size / sizeof(*symbols); k++)
            look_at_symbol(&c, &symbols[k],
                           text_at(image, &c.sections[s->sh_link], symbols[k].st_name), found,
                           argument);
    }
    return true;
}

/* Parameters that have been found. Most kernels have few. */
struct parameters {
    struct ibx_image_parameter *all;
    size_t count, room;
};

/* Number `index` of them, which counts from now on; NULL: no memory. */
static struct ibx_image_parameter *parameter(struct parameters *p, size_t index)
{
    size_t room = p->room;
    while (room <= index)
        room *= 2;
    struct ibx_image_parameter *all =
        room > p->room ? realloc(p->all, room * sizeof(*all)) : p->all;
    if (!all)
        return NULL;
    if (room > p->room)
        memset(all + p->room, 0, (room - p->room) * sizeof(*all));
    *p = (struct parameters){all, p->count > index ? p->count : index + 1, room};
    return &all[index];
}

static bool note_parameter(const uint8_t *info, bool second, struct parameters *all)
{
    uint16_t index, at, n;
    uint32_t flags;
    memcpy(&index, info + 4, sizeof(index));
    memcpy(&at, info + 6, sizeof(at));
    memcpy(&n, info + 8, sizeof(n));
    memcpy(&flags, info + 8, sizeof(flags));
    if (index >= IBX_IMAGE_PARAMETERS)
        return true;
    struct ibx_image_parameter *noted = parameter(all, index);
    if (noted)
        *noted = (struct ibx_image_parameter){at, second ? n : flags >> 18, false};
    return noted;
}

/* The section ".nv.info.KERNEL"; NULL: the cubin has none. */
static const Elf64_Shdr *info_of(const struct cubin *c, const char *kernel)
{
    static const char prefix[] = ".nv.info.";
    const size_t n = sizeof(prefix) - 1, end = c->names->sh_size;
    const char *names = (const char *)c->image + c->names->sh_offset;
    if (c->names->sh_type != SHT_STRTAB || !end || names[end - 1])
        return NULL;
    for (unsigned i = 0; i < c->count; i++) {
        const uint32_t at = c->sections[i].sh_name;
        if (holds(end, at, n + 1) && !memcmp(names + at, prefix, n) &&
            !strcmp(names + at + n, kernel))
            return &c->sections[i];
    }
    return NULL;
}

/* The parameters, from the entries of that section. */
static bool parameters_in_cubin(const uint8_t *image, size_t n, const char *kernel,
                                struct parameters *all)
{
    struct cubin c;
    const Elf64_Shdr *section = begin_cubin(image, n, &c) ? info_of(&c, kernel) : NULL;
    if (!section || section->sh_type == SHT_NOBITS || !is_within(&c, section))
        return false;
    const uint8_t *info = image + section->sh_offset;
    for (size_t at = 0, end = section->sh_size; holds(end, at, 4);) {
        const uint8_t form = info[at], what = info[at + 1];
        uint16_t length;
        memcpy(&length, info + at + 2, sizeof(length));
        at += 4;
        if (form != INFO_SIZED)
            continue;
        if (!holds(end, at, length))
            return false;
        if ((what == INFO_PARAMETER || what == INFO_PARAMETER_V2) && length == INFO_BYTES &&
            !note_parameter(info + at, what == INFO_PARAMETER_V2, all))
            return false;
        at += length;
    }
    return true;
}

/* --------------------------------------------------------------------------------- text of PTX */

/* A token: a word, a number, a quoted string, or one other character; n = 0: the end. */
struct token {
    const char *at;
    size_t n;
};

static const char *behind_blanks(const char *text)
{
    for (;;) {
        const char *end = text[0] != '/'   ? NULL
                          : text[1] == '/' ? strchr(text, '\n')
                          : text[1] == '*' ? strstr(text + 2, "*/")
                                           : NULL;
        if (end)
            text = end + (text[1] == '*' ? 2 : 1);
        else if (isspace((unsigned char)*text))
            text++;
        else
            return text;
    }
}

static bool is_of_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

static struct token next_token(const char **text)
{
    struct token t = {behind_blanks(*text), 0};
    if (*t.at == '"') {
        const char *end = strchr(t.at + 1, '"');
        t.n = end ? (size_t)(end - t.at) + 1 : strlen(t.at);
    } else if (*t.at) {
        for (t.n = 1; (*t.at == '.' || is_of_word(*t.at)) && is_of_word(t.at[t.n]);)
            t.n++;
    }
    *text = t.at + t.n;
    return t;
}

static bool is(struct token t, const char *word)
{
    return t.n == strlen(word) && !memcmp(t.at, word, t.n);
}

/* The bytes of an element of this type, such as ".u32" or ".v4"; 0: it is no type. */
static size_t bytes_of(struct token type)
{
    static const struct {
        const char *type;
        size_t n;
    } types[] = {{".b8", 1},  {".u8", 1},    {".s8", 1},   {".b16", 2}, {".u16", 2},
                 {".s16", 2}, {".f16", 2},   {".bf16", 2}, {".b32", 4}, {".u32", 4},
                 {".s32", 4}, {".f32", 4},   {".b64", 8},  {".u64", 8}, {".s64", 8},
                 {".f64", 8}, {".b128", 16}, {".v2", 2},   {".v4", 4},  {".v8", 8}};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (is(type, types[i].type))
            return types[i].n;
    return 0;
}

/* Parses what follows ".global" or ".const": ".align 4 .attribute(.managed) .v2 .u32 NAME[3][2]".
 */
static void look_at_variable(const char **text, enum ibx_image_part what, ibx_image_found *found,
                             void *argument)
{
    struct token t, name = {NULL, 0};
    size_t n = 1;
    bool typed = false;
    for (t = next_token(text); t.n && !is(t, "=") && !is(t, ";"); t = next_token(text)) {
        if (is(t, ".align")) {
            next_token(text);
        } else if (is(t, "(")) {
            for (; t.n && !is(t, ")"); t = next_token(text))
                what = is(t, ".managed") ? IBX_IMAGE_MANAGED : what;
        } else if (is(t, "[")) {
            t = next_token(text);
            if (__builtin_mul_overflow(n, is(t, "]") ? 0 : strtoull(t.at, NULL, 0), &n))
                return;
        } else if (bytes_of(t)) {
            if (__builtin_mul_overflow(n, bytes_of(t), &n))
                return;
            typed = true;
        } else if (is_of_word(*t.at) && !name.n && typed) {
            name = t;
        }
    }
    if (t.n && name.n && n)
        found(name.at, name.n, n, what, argument);
}

/* Finds kernels (".entry NAME") and the module's own variables in PTX. */
static void look_at_ptx(const char *text, ibx_image_found *found, void *argument)
{
    unsigned depth = 0;
    bool elsewhere = false; /* after ".extern": defined in another module */
    for (struct token t = next_token(&text); t.n; t = next_token(&text)) {
        const bool constant = is(t, ".const");
        if (is(t, "{"))
            depth++;
        else if (is(t, "}") && depth)
            depth--;
        if (depth)
            continue;
        if (is(t, ".extern"))
            elsewhere = true;
        else if (is(t, ";") || is(t, "}"))
            elsewhere = false;
        else if (is(t, ".entry") && !elsewhere) {
            t = next_token(&text);
            if (t.n && is_of_word(*t.at))
                found(t.at, t.n, 0, IBX_IMAGE_KERNEL, argument);
        } else if ((constant || is(t, ".global")) && !elsewhere) {
            look_at_variable(&text, constant ? IBX_IMAGE_CONSTANT : IBX_IMAGE_VARIABLE, found,
                             argument);
        }
    }
}

/* Parses what follows ".param": ".align 8 .b8 NAME[24]", or ".u64 .ptr .global .align 4 NAME".
 * False: it has no type, or is too long. *t: the token after it. */
static bool read_parameter(const char **text, struct token *t, struct ibx_image_parameter *p,
                           size_t before)
{
    size_t n = 0, aligned = 0;
    bool pointer = false;
    for (*t = next_token(text); t->n && !is(*t, ",") && !is(*t, ")"); *t = next_token(text)) {
        if (is(*t, ".ptr")) {
            pointer = true; /* its .align is that of the target */
        } else if (is(*t, ".align")) {
            *t = next_token(text);
            aligned = pointer ? aligned : strtoull(t->at, NULL, 0);
        } else if (is(*t, "[")) {
            *t = next_token(text);
            if (__builtin_mul_overflow(n, strtoull(t->at, NULL, 0), &n))
                return false;
        } else if (bytes_of(*t)) {
            n = (n ? n : 1) * bytes_of(*t);
            aligned = aligned ? aligned : n;
        }
    }
    const size_t up = aligned ? aligned - 1 : 0;
    if (!n || n > UINT16_MAX || aligned & up || up > UINT16_MAX)
        return false;
    *p = (struct ibx_image_parameter){(uint32_t)((before + up) & ~up), (uint32_t)n,
                                      aligned > AREA_ALIGNED};
    return before <= UINT16_MAX;
}

/* The text after ".entry NAME"; NULL: not found. A plain search, since tokenizing long PTX takes a
 * while. */
static const char *behind_entry(const char *text, const char *kernel)
{
    static const char entry[] = ".entry";
    const size_t n = strlen(kernel);
    for (const char *at = text; n && (at = strstr(at, kernel)); at++) {
        const char *before = at;
        while (before > text && isspace((unsigned char)before[-1]))
            before--;
        if (before < at && (size_t)(before - text) >= sizeof(entry) - 1 &&
            !strncmp(before - (sizeof(entry) - 1), entry, sizeof(entry) - 1) && !is_of_word(at[n]))
            return at + n;
    }
    return NULL;
}

/* Parses "( .param .u64 NAME, ... )", which is missing if there are no parameters. */
static bool parameters_in_ptx(const char *text, const char *kernel, struct parameters *all)
{
    size_t before = 0;
    bool elsewhere = false;
    text = behind_entry(text, kernel);
    if (!text)
        return false;
    struct token t = next_token(&text);
    while (is(t, all->count ? "," : "(") && all->count < IBX_IMAGE_PARAMETERS) {
        struct ibx_image_parameter p;
        t = next_token(&text);
        if (!all->count && is(t, ")"))
            break;
        if (!is(t, ".param") || !read_parameter(&text, &t, &p, before))
            return false;
        before = p.at + p.n;
        p.elsewhere = elsewhere = elsewhere || p.elsewhere;
        struct ibx_image_parameter *noted = parameter(all, all->count);
        if (!noted)
            return false;
        *noted = p;
    }
    return !all->count || is(t, ")");
}

const uint8_t *ibx_image_next(const uint8_t *fat, size_t n, size_t *at, struct ibx_image_entry *e)
{
    const size_t here = *at;
    if (!holds(n, here, sizeof(*e)))
        return NULL;
    memcpy(e, fat + here, sizeof(*e));
    if (here % 8 || e->version != ENTRY_VERSION || e->head < sizeof(*e) || e->head % 8 ||
        !holds(n, here, e->head) || !holds(n, here + e->head, e->n))
        return NULL;
    *at += e->head + e->n;
    return fat + here + e->head;
}

const uint8_t *ibx_image_wrapped(const struct ibx_image_wrapper *wrapper, size_t *n)
{
    uint32_t magic = 0;
    if (!wrapper || wrapper->magic != WRAPPER_MAGIC || !wrapper->data)
        return NULL;
    memcpy(&magic, wrapper->data, sizeof(magic));
    *n = magic == FAT_MAGIC ? measure_fat(wrapper->data, SIZE_MAX) : 0;
    return *n && *n <= PTRDIFF_MAX / 2 ? wrapper->data : NULL;
}

bool ibx_image_lacks_cubin(const struct ibx_image_wrapper *wrapper)
{
    struct ibx_image_entry e;
    size_t n;
    const uint8_t *fat = ibx_image_wrapped(wrapper, &n);
    if (!fat)
        return false;
    for (size_t at = IBX_IMAGE_FAT_HEAD; at < n && ibx_image_next(fat, n, &at, &e);)
        if (e.kind == IBX_IMAGE_OF_CUBIN)
            return false;
    return true;
}

bool ibx_image_look(const uint8_t *fat, size_t n, ibx_image_found *found, void *argument,
                    bool *compressed)
{
    struct ibx_image_entry e;
    *compressed = false;
    for (size_t at = IBX_IMAGE_FAT_HEAD; at < n;) {
        const uint8_t *image = ibx_image_next(fat, n, &at, &e);
        if (!image)
            return false;
        *compressed = e.uncompressed_n;
        if (*compressed ||
            (e.kind == IBX_IMAGE_OF_CUBIN && !look_at_cubin(image, e.n, found, argument)))
            return false;
        if (e.kind == IBX_IMAGE_OF_PTX && memchr(image, 0, e.n))
            look_at_ptx((const char *)image, found, argument);
    }
    return true;
}

/* Whether the section has relocations: the driver writes addresses into it when it loads the cubin.
 */
static bool is_relocated(const struct cubin *c, unsigned section)
{
    for (unsigned i = 0; i < c->count; i++)
        if ((c->sections[i].sh_type == SHT_REL || c->sections[i].sh_type == SHT_RELA) &&
            c->sections[i].sh_info == section && c->sections[i].sh_size)
            return true;
    return false;
}

static bool begins_in_cubin(const uint8_t *image, size_t n, const char *name, size_t bytes,
                            const uint8_t **begin)
{
    struct cubin c;
    if (!open_cubin(image, n, &c))
        return false;
    for (unsigned i = 0; i < c.count; i++) {
        const Elf64_Shdr *s = &c.sections[i], *in;
        if (s->sh_type != SHT_SYMTAB || s->sh_link >= c.count || s->sh_offset % 8)
            continue;
        const Elf64_Sym *symbols = (const void *)(image + s->sh_offset);
        for (size_t k = 0; k < s->sh_size / sizeof(*symbols); k++) {
            const char *is = text_at(image, &c.sections[s->sh_link], symbols[k].st_name);
            if (!is || strcmp(is, name) != 0 || ELF64_ST_TYPE(symbols[k].st_info) != STT_OBJECT ||
                !symbols[k].st_shndx || symbols[k].st_shndx >= c.count)
                continue;
            in = &c.sections[symbols[k].st_shndx];
            const bool zeros = in->sh_type == SHT_NOBITS;
            if (symbols[k].st_size != bytes || is_relocated(&c, symbols[k].st_shndx) ||
                (!zeros && !holds(in->sh_size, symbols[k].st_value, bytes)))
                return false;
            *begin = zeros ? NULL : image + in->sh_offset + symbols[k].st_value;
            return true;
        }
    }
    return false;
}

bool ibx_image_begins(const uint8_t *fat, size_t n, const char *name, size_t bytes,
                      const uint8_t **begin)
{
    struct ibx_image_entry e;
    const uint8_t *image = fat;
    for (size_t at = IBX_IMAGE_FAT_HEAD; image && at < n;) {
        image = ibx_image_next(fat, n, &at, &e);
        if (image && !e.uncompressed_n && e.kind == IBX_IMAGE_OF_CUBIN &&
            begins_in_cubin(image, e.n, name, bytes, begin))
            return true;
    }
    return false;
}

/* In an image of that kind. */
static bool parameters_in(const uint8_t *fat, size_t n, unsigned kind, const char *kernel,
                          struct parameters *all)
{
    struct ibx_image_entry e;
    const uint8_t *image = fat;
    bool found = false;
    for (size_t at = IBX_IMAGE_FAT_HEAD; !found && image && at < n;) {
        all->count = 0;
        image = ibx_image_next(fat, n, &at, &e);
        if (!image || e.uncompressed_n || e.kind != kind)
            continue;
        found = kind == IBX_IMAGE_OF_CUBIN
                    ? parameters_in_cubin(image, e.n, kernel, all)
                    : memchr(image, 0, e.n) && parameters_in_ptx((const char *)image, kernel, all);
    }
    return found;
}

struct ibx_image_parameter *ibx_image_parameters(const uint8_t *fat, size_t n, const char *kernel,
                                                 size_t *count)
{
    struct parameters all = {.all = calloc(FEW_PARAMETERS, sizeof(*all.all)),
                             .room = FEW_PARAMETERS};
    if (all.all && (parameters_in(fat, n, IBX_IMAGE_OF_CUBIN, kernel, &all) ||
                    parameters_in(fat, n, IBX_IMAGE_OF_PTX, kernel, &all))) {
        *count = all.count;
        return all.all;
    }
    free(all.all);
    return NULL;
}
