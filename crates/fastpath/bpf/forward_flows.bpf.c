// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/* forward.bpf.c with flows (flows.h): loaded while Linux's firewall decides about whole families of packets. */
#define FLOWS
#include "forward.bpf.c"
