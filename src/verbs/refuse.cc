// SPDX-License-Identifier: Apache-2.0
/// Verbs that fail: errno, and a line with the reason for a user who wants one.
#include <string>

#include "verbs/wrappers.h"

namespace nupa::verbs {
namespace {

void print(const char* call, int code, const char* reason) {
  if (!explains()) return;
  const bool is_whole = std::strncmp(call, "ibv_", 4) == 0;
  explain(is_whole ? call : (std::string("ibv_") + call).c_str(), code, reason);
}

}  // namespace

int explained(int error, const char* call) {
  print(call, error, nullptr);
  return error;
}
int explained(const Error& error, const char* call) {
  print(call, error.code(), error.what());
  return error.code();
}

std::nullptr_t refuse(int error, const char* call) {
  errno = explained(error, call);
  return nullptr;
}
std::nullptr_t refuse(const Error& error, const char* call) {
  errno = explained(error, call);
  return nullptr;
}

}  // namespace nupa::verbs
