// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Places that tracers can stop at or count: USDT probes of the provider `nupa` (docs/guides/tracing.md). A place costs
/// an instruction that does nothing until a tracer asks for it.

#ifdef NUPA_WITH_PROBES
#define SDT_USE_VARIADIC
#include <sys/sdt.h>
/// NUPA_PROBE(name, ARGUMENTS...): up to twelve whole numbers.
#define NUPA_PROBE(name, ...) STAP_PROBEV(nupa, name, ##__VA_ARGS__)
#else
#define NUPA_PROBE(name, ...) ((void)0)
#endif
