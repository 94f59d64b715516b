/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The arguments of functions in the lists math_*.def, as C types. IBX_EACH(M, arguments...) applies
 * M to each argument, with commas between: M(k, argument), where k counts down to 1.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_MATH_ARGUMENTS_H
#define IBX_FRONTEND_GLUE_SESSION_MATH_ARGUMENTS_H

#define IBX_EACH_1(M, a)       M(1, a)
#define IBX_EACH_2(M, a, ...)  M(2, a), IBX_EACH_1(M, __VA_ARGS__)
#define IBX_EACH_3(M, a, ...)  M(3, a), IBX_EACH_2(M, __VA_ARGS__)
#define IBX_EACH_4(M, a, ...)  M(4, a), IBX_EACH_3(M, __VA_ARGS__)
#define IBX_EACH_5(M, a, ...)  M(5, a), IBX_EACH_4(M, __VA_ARGS__)
#define IBX_EACH_6(M, a, ...)  M(6, a), IBX_EACH_5(M, __VA_ARGS__)
#define IBX_EACH_7(M, a, ...)  M(7, a), IBX_EACH_6(M, __VA_ARGS__)
#define IBX_EACH_8(M, a, ...)  M(8, a), IBX_EACH_7(M, __VA_ARGS__)
#define IBX_EACH_9(M, a, ...)  M(9, a), IBX_EACH_8(M, __VA_ARGS__)
#define IBX_EACH_10(M, a, ...) M(10, a), IBX_EACH_9(M, __VA_ARGS__)
#define IBX_EACH_11(M, a, ...) M(11, a), IBX_EACH_10(M, __VA_ARGS__)
#define IBX_EACH_12(M, a, ...) M(12, a), IBX_EACH_11(M, __VA_ARGS__)
#define IBX_EACH_13(M, a, ...) M(13, a), IBX_EACH_12(M, __VA_ARGS__)
#define IBX_EACH_14(M, a, ...) M(14, a), IBX_EACH_13(M, __VA_ARGS__)
#define IBX_EACH_15(M, a, ...) M(15, a), IBX_EACH_14(M, __VA_ARGS__)
#define IBX_EACH_16(M, a, ...) M(16, a), IBX_EACH_15(M, __VA_ARGS__)
#define IBX_EACH_17(M, a, ...) M(17, a), IBX_EACH_16(M, __VA_ARGS__)
#define IBX_EACH_18(M, a, ...) M(18, a), IBX_EACH_17(M, __VA_ARGS__)
#define IBX_EACH_19(M, a, ...) M(19, a), IBX_EACH_18(M, __VA_ARGS__)
#define IBX_EACH_20(M, a, ...) M(20, a), IBX_EACH_19(M, __VA_ARGS__)
#define IBX_EACH_21(M, a, ...) M(21, a), IBX_EACH_20(M, __VA_ARGS__)
#define IBX_EACH_22(M, a, ...) M(22, a), IBX_EACH_21(M, __VA_ARGS__)
#define IBX_EACH_23(M, a, ...) M(23, a), IBX_EACH_22(M, __VA_ARGS__)
#define IBX_EACH_24(M, a, ...) M(24, a), IBX_EACH_23(M, __VA_ARGS__)
#define IBX_EACH_25(M, a, ...) M(25, a), IBX_EACH_24(M, __VA_ARGS__)
#define IBX_EACH_26(M, a, ...) M(26, a), IBX_EACH_25(M, __VA_ARGS__)
#define IBX_EACH_27(M, a, ...) M(27, a), IBX_EACH_26(M, __VA_ARGS__)
#define IBX_EACH_28(M, a, ...) M(28, a), IBX_EACH_27(M, __VA_ARGS__)
#define IBX_EACH_29(M, a, ...) M(29, a), IBX_EACH_28(M, __VA_ARGS__)
#define IBX_EACH_30(M, a, ...) M(30, a), IBX_EACH_29(M, __VA_ARGS__)
#define IBX_EACH_31(M, a, ...) M(31, a), IBX_EACH_30(M, __VA_ARGS__)
#define IBX_EACH_32(M, a, ...) M(32, a), IBX_EACH_31(M, __VA_ARGS__)
#define IBX_COUNT_OF(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17,   \
                     a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, n, \
                     ...)                                                                          \
    n
#define IBX_COUNT(...)                                                                             \
    IBX_COUNT_OF(__VA_ARGS__, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,  \
                 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define IBX_JOIN(a, b)   a##b
#define IBX_EACH_OF(n)   IBX_JOIN(IBX_EACH_, n)
#define IBX_EACH(M, ...) IBX_EACH_OF(IBX_COUNT(__VA_ARGS__))(M, __VA_ARGS__)

/* For the hundreds of one-line functions that the lists generate: with sanitizers these would take
 * longer to compile than anything else. */
#define IBX_UNSANITIZED __attribute__((no_sanitize("address", "thread", "undefined")))

/* The C type of an argument, and its member of union ibx_math_value. */
#define IBX_TYPE(k, a)     IBX_TYPE_##a
#define IBX_TYPE_I         int
#define IBX_TYPE_L         uint64_t
#define IBX_TYPE_F         float
#define IBX_TYPE_D         double
#define IBX_TYPE_P         void *
#define IBX_TYPE_Z         void *
#define IBX_TYPE_H(t)      void *
#define IBX_TYPE_N(t)      int
#define IBX_TYPE_M(t)      void *
#define IBX_TYPE_MN(t)     void *
#define IBX_TYPE_S(n)      void *
#define IBX_TYPE_ST(k)     void *
#define IBX_TYPE_SP(k)     void *
#define IBX_TYPE_SC(k, c)  void *
#define IBX_TYPE_R(n)      void *
#define IBX_TYPE_RT(k)     void *
#define IBX_TYPE_RP(k)     void *
#define IBX_TYPE_X(n)      void *
#define IBX_TYPE_XT(k)     void *
#define IBX_TYPE_O(n)      void *
#define IBX_TYPE_AN(k, n)  void *
#define IBX_TYPE_AL(k, n)  void *
#define IBX_TYPE_K(t)      void *
#define IBX_TYPE_C(n)      void *
#define IBX_TYPE_W(k)      void *
#define IBX_TYPE_AC(k, c)  void *
#define IBX_TYPE_ACL(k, c) void *
#define IBX_TYPE_A(k, n)   void *
#define IBX_TYPE_BN(n)     void *
#define IBX_TYPE_BT(k)     void *
#define IBX_TYPE_OA(k, n)  void *
#define IBX_TYPE_OL(k)     void *
#define IBX_TYPE_T(t)      void *
#define IBX_TYPE_SA(k)     void *
#define IBX_TYPE_SB(k)     void *
#define IBX_TYPE_V         void *
#define IBX_TYPE_KN(t)     void *
#define IBX_TYPE_SS        void *
#define IBX_TYPE_AV(t, k)  void *
#define IBX_TYPE_CV(t, k)  void *

#define IBX_MEMBER_I         i
#define IBX_MEMBER_L         l
#define IBX_MEMBER_F         f
#define IBX_MEMBER_D         d
#define IBX_MEMBER_P         p
#define IBX_MEMBER_Z         p
#define IBX_MEMBER_H(t)      p
#define IBX_MEMBER_N(t)      i
#define IBX_MEMBER_M(t)      p
#define IBX_MEMBER_MN(t)     p
#define IBX_MEMBER_S(n)      p
#define IBX_MEMBER_ST(k)     p
#define IBX_MEMBER_SP(k)     p
#define IBX_MEMBER_SC(k, c)  p
#define IBX_MEMBER_R(n)      p
#define IBX_MEMBER_RT(k)     p
#define IBX_MEMBER_RP(k)     p
#define IBX_MEMBER_X(n)      p
#define IBX_MEMBER_XT(k)     p
#define IBX_MEMBER_O(n)      p
#define IBX_MEMBER_AN(k, n)  p
#define IBX_MEMBER_AL(k, n)  p
#define IBX_MEMBER_K(t)      p
#define IBX_MEMBER_C(n)      p
#define IBX_MEMBER_W(k)      p
#define IBX_MEMBER_AC(k, c)  p
#define IBX_MEMBER_ACL(k, c) p
#define IBX_MEMBER_A(k, n)   p
#define IBX_MEMBER_BN(n)     p
#define IBX_MEMBER_BT(k)     p
#define IBX_MEMBER_OA(k, n)  p
#define IBX_MEMBER_OL(k)     p
#define IBX_MEMBER_T(t)      p
#define IBX_MEMBER_SA(k)     p
#define IBX_MEMBER_SB(k)     p
#define IBX_MEMBER_V         p
#define IBX_MEMBER_KN(t)     p
#define IBX_MEMBER_SS        p
#define IBX_MEMBER_AV(t, k)  p
#define IBX_MEMBER_CV(t, k)  p

#endif
