// SPDX-License-Identifier: Apache-2.0
#include "base/lowest_descriptor.h"

#include <atomic>

namespace nupa::base {
namespace {

std::atomic<int> g_lowest{0};

}  // namespace

void set_lowest_descriptor(int lowest) { g_lowest = lowest; }
int lowest_descriptor() { return g_lowest; }

}  // namespace nupa::base
