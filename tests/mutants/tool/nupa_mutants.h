// SPDX-License-Identifier: Apache-2.0
// Included before each file of a build with faults. The environment chooses one fault when the program starts:
// NUPA_MUTANT=N makes fault N active. NUPA_MUTANT_REACHED=FILE counts instead which of them a program reaches.
#pragma once

extern "C" {
__attribute__((visibility("default"))) extern int nupa_mutant_active;
__attribute__((visibility("default"))) extern unsigned char* nupa_mutant_reached;
}

constexpr bool nupa_mutant(int number) {
  if (__builtin_is_constant_evaluated()) return false;
  if (nupa_mutant_reached != nullptr) [[unlikely]]
    nupa_mutant_reached[number] = 1;
  return nupa_mutant_active == number;
}
