// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The types behind the C handles, and helpers that the C functions share.
#include <nupa/ccl.h>
#include <nupa/export.h>

#include <memory>
#include <string>
#include <vector>

#include "ccl/communicator/communicator.h"

struct nupa_ccl_comm {
  std::unique_ptr<nupa::ccl::Communicator> communicator;
};

/// An operation that has been started: a collective or a message.
struct Begun {
  nupa::ccl::Communicator* communicator;
  std::shared_ptr<nupa::ccl::Job> job;  ///< set for a collective, otherwise `message` is set
  std::shared_ptr<nupa::ccl::Message> message;
  nupa_ccl_status* status = nullptr;  ///< where a receive stores its result; may be null
  size_t element_bytes = 1;
  nupa::ccl::Type type = nupa::ccl::Type::kUint8;

  bool is_done() const { return job != nullptr ? job->is_done() : message->done.load(std::memory_order_acquire); }
  int wait() const;
};

struct nupa_ccl_request {
  std::vector<Begun> all;
};

namespace nupa::ccl {

/// The calls of a thread between group_start and group_end, which are started together.
struct CallGroup {
  struct Collective {
    Communicator* communicator;
    Call call;
  };
  std::vector<Collective> collectives;
  std::vector<Begun> messages;
};

/// Stores the text that nupa_ccl_error_text() returns to this thread. Returns `error`.
int report(int error, std::string text);
inline int report(const Error& error) { return report(error.code(), error.what()); }
/// The same with the text of an error that a call on this communicator has returned. Stores nothing if `error` is 0.
int report(const Communicator& communicator, int error);
/// The same for an operation that was started. If a receive's type differs from the send's, the text names both.
int report(const Begun& begun, int error);

/// Number of groups that this thread has started and not ended.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local int t_group_depth;

/// Ends this thread's innermost group and, if no other group encloses it, moves its calls to `group`. EINVAL: another
/// group encloses it, or there is none.
int take_group(CallGroup* group);
/// Runs all calls to their end; with `request`, only starts them; inside a group of this thread, adds them to it.
int run_or_start(CallGroup group, nupa_ccl_request** request);
/// Starts the call, or adds it to this thread's group. Called only with a request or inside a group.
[[gnu::noinline]] int start_or_keep(Communicator& communicator, Call& call, nupa_ccl_request** request);
inline int run_or_start(Communicator& communicator, Call& call, nupa_ccl_request** request) {
  if (request != nullptr || t_group_depth > 0) [[unlikely]]
    return start_or_keep(communicator, call, request);
  const int error = communicator.run(call);
  return __builtin_expect(error == 0, 1) ? 0 : report(communicator, error);
}
int run_or_start(const Begun& message, nupa_ccl_request** request);

}  // namespace nupa::ccl
