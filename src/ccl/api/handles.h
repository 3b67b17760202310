#pragma once
/// What the C handles are, and what all their functions have in common.
#include <nupa/ccl.h>
#include <nupa/export.h>

#include <memory>
#include <string>
#include <vector>

#include "ccl/communicator/communicator.h"

struct nupa_ccl_comm {
  std::unique_ptr<nupa::ccl::Communicator> communicator;
};

/// Something that was begun: a collective or a message.
struct Begun {
  nupa::ccl::Communicator* communicator;
  std::shared_ptr<nupa::ccl::Job> job;  ///< a collective
  std::shared_ptr<nupa::ccl::Message> message;
  nupa_ccl_status* status = nullptr;  ///< of a receive
  size_t element_bytes = 1;
  nupa::ccl::Type type = nupa::ccl::Type::kUint8;

  bool is_done() const { return job != nullptr ? job->is_done() : message->done.load(std::memory_order_acquire); }
  int wait() const;
};

struct nupa_ccl_request {
  std::vector<Begun> all;
};

namespace nupa::ccl {

/// Calls of a thread that are one.
struct CallGroup {
  struct Collective {
    Communicator* communicator;
    Call call;
  };
  std::vector<Collective> collectives;
  std::vector<Begun> messages;
};

/// Keeps the text for nupa_ccl_error_text() and returns the value.
int say(int error, std::string text);
inline int say(const Error& error) { return say(error.code(), error.what()); }
/// What a call on a communicator has ended by.
int say(const Communicator& communicator, int error);
/// The same of a call that was begun.
int say(const Begun& begun, int error);

/// Groups that this thread has begun and not ended.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local int t_group_depth;

/// Ends this thread's outermost group: what it has called since. EINVAL: there is none, or this was an inner one.
int take_group(CallGroup* group);
/// Does all of it, or begins it if there is a place for a request, or leaves it to the end of this thread's group.
int run_or_start(CallGroup group, nupa_ccl_request** request);
/// Does it, or begins it if there is a place for a request, or leaves it to the end of this thread's group.
[[gnu::noinline]] int start_or_keep(Communicator& communicator, Call& call, nupa_ccl_request** request);
inline int run_or_start(Communicator& communicator, Call& call, nupa_ccl_request** request) {
  if (request != nullptr || t_group_depth > 0) [[unlikely]]
    return start_or_keep(communicator, call, request);
  const int error = communicator.run(call);
  return __builtin_expect(error == 0, 1) ? 0 : say(communicator, error);
}
int run_or_start(const Begun& message, nupa_ccl_request** request);

}  // namespace nupa::ccl
