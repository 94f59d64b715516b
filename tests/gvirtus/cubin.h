// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Makes cubins as a program loads them, of sections and symbols.
#ifndef TESTS_GVIRTUS_CUBIN_H
#define TESTS_GVIRTUS_CUBIN_H

#include <cstddef>
#include <cstring>
#include <elf.h>
#include <string>
#include <vector>

class Cubin
{
  public:
    static constexpr unsigned char entry = 0x10; // a kernel's, among a symbol's other bits

    // Adds a section; returns its number. One of zeros (SHT_NOBITS) has a size, and no bytes in the
    // image.
    Elf64_Section section(const char *name, unsigned type, const std::string &bytes,
                          Elf64_Section relocated = 0)
    {
        const Elf64_Section number = add(type, bytes);
        sections[number].sh_name = name_in(names, name);
        sections[number].sh_info = relocated;
        return number;
    }

    void symbol(const char *name, unsigned char type, Elf64_Section section, std::size_t bytes,
                std::size_t at = 0, unsigned char other = 0)
    {
        Elf64_Sym one = {};
        one.st_name = name_in(texts, name);
        one.st_info = ELF64_ST_INFO(STB_GLOBAL, type);
        one.st_other = other;
        one.st_shndx = section;
        one.st_value = at;
        one.st_size = bytes;
        symbols.push_back(one);
    }

    std::vector<char> image() const
    {
        Cubin all = *this; // and what describes it
        all.contents.resize((contents.size() + 7) & ~std::size_t{7});
        const Elf64_Section table = all.add(SHT_SYMTAB, bytes_of(symbols));
        all.sections[table].sh_link = all.add(SHT_STRTAB, texts);
        Elf64_Ehdr head = {};
        head.e_shstrndx = all.add(SHT_STRTAB, names);
        std::memcpy(head.e_ident, ELFMAG, SELFMAG);
        head.e_ident[EI_CLASS] = ELFCLASS64;
        head.e_ident[EI_ABIVERSION] = 8;
        head.e_flags = 90 << 8;
        head.e_shoff = sizeof(head);
        head.e_shentsize = sizeof(Elf64_Shdr);
        head.e_shnum = static_cast<Elf64_Half>(all.sections.size());
        for (Elf64_Shdr &one : all.sections)
            one.sh_offset += sizeof(head) + all.sections.size() * sizeof(one);
        const std::string whole =
            bytes_of(std::vector<Elf64_Ehdr>{head}) + bytes_of(all.sections) + all.contents;
        return {whole.begin(), whole.end()};
    }

  private:
    std::vector<Elf64_Shdr> sections{1}; // the first entry of each is empty
    std::vector<Elf64_Sym> symbols{1};
    std::string names{'\0'}, texts{'\0'}, contents;

    template <typename T> static std::string bytes_of(const std::vector<T> &all)
    {
        return {reinterpret_cast<const char *>(all.data()), all.size() * sizeof(T)};
    }

    static Elf64_Word name_in(std::string &all, const char *name)
    {
        const std::size_t at = all.size();
        all.append(name, std::strlen(name) + 1);
        return static_cast<Elf64_Word>(at);
    }

    Elf64_Section add(unsigned type, const std::string &bytes)
    {
        Elf64_Shdr one = {};
        one.sh_type = type;
        one.sh_size = bytes.size();
        one.sh_offset = type == SHT_NOBITS ? 1u << 30 : contents.size();
        contents += type == SHT_NOBITS ? "" : bytes;
        sections.push_back(one);
        return static_cast<Elf64_Section>(sections.size() - 1);
    }
};

#endif
