// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <optional>

#include "ccl/api/handles.h"

namespace nupa::ccl {
namespace {

std::optional<Operation> operation_named(const char* name) {
  for (uint32_t number = 0; number < kOperations; ++number)
    if (std::strcmp(name, name_of(static_cast<Operation>(number))) == 0) return static_cast<Operation>(number);
  return {};
}

}  // namespace
}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT int nupa_ccl_plan(nupa_ccl_comm* comm, const char* operation, size_t bytes, char* text, size_t room) {
  if (comm == nullptr) return report(EINVAL, "comm is null");
  if (operation == nullptr || text == nullptr || room == 0)
    return report(EINVAL, "operation or text is null, or room is 0");
  const auto known = operation_named(operation);
  if (!known) return report(EINVAL, "unknown operation");
  Communicator& communicator = *comm->communicator;
  if (const Cause cause = communicator.ended(); cause) return report(communicator, cause.error);
  Call call;
  call.operation = *known;
  call.elements = bytes;  // a call's default type has one byte
  const std::string plan = communicator.plan_of(call);
  // The first call on a communicator makes links between its ranks, and that failed.
  if (plan.empty()) return report(communicator, communicator.ended() ? communicator.ended().error : ECONNRESET);
  text[plan.copy(text, room - 1)] = 0;
  return 0;
}

}  // extern "C"
