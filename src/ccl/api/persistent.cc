// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <optional>

#include "ccl/api/handles.h"

/// Calls that nupa_ccl_start() runs, each time with the same arguments.
struct nupa_ccl_persistent {
  nupa::ccl::CallGroup calls;
  /// Set if the calls are one collective that is small enough to run inline.
  std::optional<nupa::ccl::InlineCall> line;

  bool is_one_collective() const { return calls.collectives.size() == 1 && calls.messages.empty(); }
};

namespace nupa::ccl {
namespace {

/// Copies the calls for one run. Messages hold state, so that each run needs new ones.
CallGroup begun_anew(const CallGroup& kept) {
  CallGroup calls = kept;
  for (Begun& begun : calls.messages)
    begun.message = std::make_shared<Message>(static_cast<const MessageTask&>(*begun.message));
  return calls;
}

}  // namespace
}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT int nupa_ccl_group_keep(nupa_ccl_persistent** kept) {
  CallGroup calls;
  if (const int error = take_group(&calls); error != 0) return error;
  if (kept == nullptr) return report(EINVAL, "kept is null");
  auto made = std::make_unique<nupa_ccl_persistent>();
  made->calls = std::move(calls);
  if (made->is_one_collective()) made->line = inline_call(made->calls.collectives.front().call);
  *kept = made.release();
  return 0;
}

NUPA_EXPORT int nupa_ccl_start(nupa_ccl_persistent* kept, nupa_ccl_request** request) {
  if (kept == nullptr) return report(EINVAL, "kept is null");
  if (request != nullptr || t_group_depth > 0 || !kept->is_one_collective())
    return run_or_start(begun_anew(kept->calls), request);
  const auto& [communicator, call] = kept->calls.collectives.front();
  int error = kept->line ? communicator->run_line(*kept->line) : Communicator::kNotNow;
  if (error == Communicator::kNotNow) error = communicator->run(call);
  return report(*communicator, error);
}

NUPA_EXPORT int nupa_ccl_persistent_free(nupa_ccl_persistent* kept) {
  delete kept;
  return 0;
}

}  // extern "C"
