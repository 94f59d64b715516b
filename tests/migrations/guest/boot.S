/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Entry of the first vCPU (multiboot: 32-bit protected mode, flat segments, no paging, interrupts
 * off) and the trampoline with which every other one gets there from real mode. Both go on in long
 * mode, since a working set of gigabytes has no room below the devices at 3 to 4 GiB.
 *
 * The guest then leaves privilege level 0 and is like a process that may use all I/O ports: a KVM
 * without hardware support (kvm_pvm) runs level 3 natively, but emulates each instruction of 0.
 *
 * The header says what is loaded where: QEMU loads no 64-bit ELF file by its ELF headers.
 */
#define FLAGS 0x00010002        /* pass the memory's size, so the command line; addresses below */
#define USER_DATA 43            /* selectors */
#define USER_CODE 51
#define TIMER     0xfee00380    /* the local APIC's initial count */
#define PORTS_AT  104           /* in a task state segment: a bit for each I/O port, 0: allowed */
#define SEGMENT_LIMIT (PORTS_AT + 8192)

    .section .multiboot, "a"
    .balign 4
header:
    .long 0x1badb002            /* magic */
    .long FLAGS
    .long -(0x1badb002 + FLAGS)
    .long header
    .long image                 /* first byte, end of the file's part, end of all, entry */
    .long image_end
    .long bss_end
    .long start

/* From protected mode, once there are page tables; a far jump into code of 64 bits follows. */
.macro long_mode_on
    mov $top, %eax
    mov %eax, %cr3
    mov %cr4, %eax
    or $0x20, %eax              /* physical addresses of 64 bits */
    mov %eax, %cr4
    mov $0xc0000080, %ecx
    rdmsr
    or $0x100, %eax             /* long mode */
    wrmsr
    mov %cr0, %eax
    or $0x80000000, %eax        /* paging */
    mov %eax, %cr0
.endm

/* From level 0 to this function at level 3. Interrupts and faults come back to level 0, to a stack
 * of this vCPU, which its task state segment knows. */
.macro leave_for function, stack, segment, selector
    lidt guest_idt_pointer
    movl $\stack, \segment + 4
    movw $PORTS_AT, \segment + 102
    movb $0xff, \segment + SEGMENT_LIMIT
    mov $\segment, %eax         /* below 16 MiB: its descriptor has these bits in one piece */
    shl $16, %rax
    mov $0x890000000000 + SEGMENT_LIMIT, %rcx
    or %rcx, %rax
    mov %rax, gdt + \selector
    mov $\selector, %eax
    ltr %ax
    mov %rsp, %rax
    push $USER_DATA
    push %rax
    push $2                     /* without interrupts */
    push $USER_CODE
    push $\function
    iretq
.endm

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
    mov $guest_low, %edi        /* the first 4 GiB as they are, in pages of 2 MiB; what is above */
    mov $0x87, %eax             /* 32 bits of each entry is zero */
2:  mov %eax, (%edi)
    add $8, %edi
    add $0x200000, %eax
    jnc 2b
    mov $guest_low + 7, %eax
    movl %eax, guest_directories
    add $0x1000, %eax
    movl %eax, guest_directories + 8
    add $0x1000, %eax
    movl %eax, guest_directories + 16
    add $0x1000, %eax
    movl %eax, guest_directories + 24
    movl $guest_directories + 7, top
    long_mode_on
    ljmp $24, $3f

    .code64
3:  mov $stack_top, %esp
    mov %ebx, %edi              /* the multiboot information */
    leave_for first, fault_stack_top, segment, 56

first:
    call guest_main
4:  jmp 4b

/* Any interrupt, which is the local APIC's. */
    .globl guest_wake
guest_wake:
    push %rax
    mov $0xfee000b0, %eax
    movl $0, (%rax)
    pop %rax
    iretq

/* Level 3 may not halt (#GP): waits for an interrupt, with this timer's count in %edi. */
    .globl guest_halt
guest_halt:
    add $8, %rsp                /* the error code */
    push %rax
    mov $TIMER, %eax
    mov %edi, (%rax)
    sti
    hlt
    cli
    pop %rax
    incq (%rsp)                 /* behind the instruction hlt */
    iretq

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
    .word gdt_end - gdt - 1
    .long gdt
trampoline_end:

    .code32
other:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    long_mode_on
    ljmp $24, $5f

    .code64
5:  mov $other_stack_top, %esp
    leave_for second, other_fault_stack_top, other_segment, 72

second:
    call guest_other
6:  jmp 6b

    .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00cf9a000000ffff    /* 8: code */
    .quad 0x00cf92000000ffff    /* 16: data */
    .quad 0x00af9a000000ffff    /* 24: code of 64 bits */
    .quad 0
    .quad 0x00cff2000000ffff    /* 40: data of level 3 */
    .quad 0x00affa000000ffff    /* 48: code of level 3, of 64 bits */
    .skip 32                    /* 56, 72: task state segments */
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .long gdt

    .bss
    .balign 4096
top:
    .skip 4096
    .balign 16
    .skip 8192
stack_top:
    .skip 8192
other_stack_top:
    .skip 1024
fault_stack_top:
    .skip 1024
other_fault_stack_top:
segment:
    .skip SEGMENT_LIMIT + 8
other_segment:
    .skip SEGMENT_LIMIT + 8
