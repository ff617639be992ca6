/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The mark of an skb that the program at tc frees. Linux reports it as dropped by traffic control (TC_INGRESS), but it is
 * counted as dropped by a filter; so dropped.bpf.c leaves it out.
 */
#pragma once

#define FREED_BY_BRICKMOON 0x626d7463
