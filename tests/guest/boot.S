/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Entry of the first vCPU (multiboot: 32-bit protected mode, flat segments, no paging, interrupts
 * off) and the trampoline with which every other one gets there from real mode.
 */
    .section .multiboot, "a"
    .balign 4
    .long 0x1badb002            /* magic */
    .long 0x00000002            /* flags: tell us about memory, hence the command line too */
    .long -(0x1badb002 + 0x00000002)

    .text
    .code32
    .globl start
start:
    cli
    lgdt gdt_pointer
    ljmp $8, $1f
1:  mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $stack_top, %esp
    push %ebx                   /* the multiboot information */
    call guest_main
2:  hlt
    jmp 2b

/* Copied to 0x8000, where SIPI vector 8 starts. */
    .globl trampoline, trampoline_end
    .code16
trampoline:
    cli
    xor %ax, %ax
    mov %ax, %ds
    lgdtl 0x8000 + trampoline_gdt - trampoline
    mov %cr0, %eax
    or $1, %al
    mov %eax, %cr0
    ljmpl $8, $other
trampoline_gdt:
    .word 23
    .long gdt
trampoline_end:

    .code32
other:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $other_stack_top, %esp
    call guest_other
3:  hlt
    jmp 3b

    .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00cf9a000000ffff    /* 8: code */
    .quad 0x00cf92000000ffff    /* 16: data */
gdt_pointer:
    .word 23
    .long gdt

    .bss
    .balign 16
    .skip 8192
stack_top:
    .skip 8192
other_stack_top:
