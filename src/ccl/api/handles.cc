// SPDX-License-Identifier: Apache-2.0
#include "ccl/api/handles.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "ccl/reduce/names.h"

namespace nupa::ccl {
namespace {

std::string& text_of_thread() {
  thread_local std::string text;
  return text;
}

CallGroup& group_of_thread() {
  thread_local CallGroup group;
  return group;
}

Event about(const Begun& begun) {
  static std::atomic<uint64_t> messages{0};
  const Message& message = *begun.message;
  Event event{};
  event.operation = message.is_send ? "send" : "recv";
  event.communicator = begun.communicator->number_in_process();
  event.rank = begun.communicator->rank();
  event.ranks = begun.communicator->ranks();
  event.number = ++messages;
  event.bytes = message.bytes;
  event.count = message.bytes / begun.element_bytes;
  event.type = static_cast<int>(begun.type);
  event.op = NUPA_CCL_NONE;
  event.root = message.peer;
  return event;
}

/// Reports the end of a message to the trace and the profiler.
void end_observing(const Begun& begun, int error) {
  Message& message = *begun.message;
  Event& event = message.observed->event;
  event.error = error;
  event.root = message.peer;
  event.bytes = message.bytes;
  event.count = message.bytes / begun.element_bytes;
  message.observed->end();
  message.observed.reset();
}

/// Starts a message. `alone`: it makes progress even if no thread waits for it. Returns 0, or an errno value whose text
/// is stored.
int begin_message(const Begun& message, bool alone) {
  if (!message.communicator->is_here()) return report(*message.communicator, message.communicator->ended().error);
  if (is_observed()) message.message->observed = std::make_unique<Observed>(about(message));
  Messages& messages = message.communicator->messages();
  if (!alone) {
    messages.begin(message.message);
    return 0;
  }
  const int error = messages.begin_alone(message.message);
  return error == 0 ? 0 : report(error, std::string("cannot start the thread for messages: ") + std::strerror(error));
}

/// A waiting thread moves the messages of only one communicator, but the peers may wait for those of another one.
bool has_messages_of_several(const CallGroup& group) {
  return std::any_of(group.messages.begin(), group.messages.end(),
                     [&](const Begun& message) { return message.communicator != group.messages.front().communicator; });
}

/// Starts all calls of the group. After an error, *request holds those that have started.
int begin_all(CallGroup& group, bool alone, nupa_ccl_request* request) {
  const bool by_threads = alone || has_messages_of_several(group);
  for (const Begun& message : group.messages) {
    if (const int error = begin_message(message, by_threads); error != 0) return error;
    request->all.push_back(message);
  }
  for (auto& [communicator, call] : group.collectives) {
    auto job = communicator->start(std::move(call));
    if (!job) return report(job.error());
    request->all.push_back({communicator, std::move(*job), nullptr});
  }
  return 0;
}

int wait_for_all(const nupa_ccl_request& request) {
  int first = 0;
  for (const Begun& begun : request.all) {
    const int error = begun.wait();
    if (error != 0 && first == 0) first = report(begun, error);
  }
  return first;
}

}  // namespace

constinit thread_local int t_group_depth = 0;

int report(int error, std::string text) {
  text_of_thread() = std::move(text);
  return error;
}

int report(const Communicator& communicator, int error) {
  if (error == 0) return 0;
  const Cause cause = communicator.ended();
  return report(error, cause.error == error ? communicator.text_of(cause) : std::strerror(error));
}

int report(const Begun& begun, int error) {
  const Message* const message = begun.message.get();
  const bool has_type = message != nullptr && message->came_type < kTypes;
  if (error != EPROTO || !has_type || message->error != EPROTO) return report(*begun.communicator, error);
  return report(EPROTO, "rank " + std::to_string(message->peer) + " sent " +
                            name_of(static_cast<Type>(message->came_type)) + " with tag " +
                            std::to_string(message->tag) + ", rank " + std::to_string(begun.communicator->rank()) +
                            " receives " + name_of(begun.type));
}

int take_group(CallGroup* group) {
  if (t_group_depth == 0) return report(EINVAL, "no group is open: call nupa_ccl_group_start() first");
  if (--t_group_depth > 0) return report(EINVAL, "this group is inside another group");
  std::swap(*group, group_of_thread());
  return 0;
}

int run_or_start(CallGroup group, nupa_ccl_request** request) {
  if (t_group_depth > 0) {
    if (request != nullptr)
      return report(EINVAL, "request is not null in a group: nupa_ccl_group_end() returns the request");
    CallGroup& whole = group_of_thread();
    std::move(group.collectives.begin(), group.collectives.end(), std::back_inserter(whole.collectives));
    std::move(group.messages.begin(), group.messages.end(), std::back_inserter(whole.messages));
    return 0;
  }
  auto begun = std::make_unique<nupa_ccl_request>();
  const int error = begin_all(group, request != nullptr, begun.get());
  if (error == 0 && request != nullptr) {
    *request = begun.release();
    return 0;
  }
  const int ended = wait_for_all(*begun);
  return error != 0 ? error : ended;
}

int start_or_keep(Communicator& communicator, Call& call, nupa_ccl_request** request) {
  if (t_group_depth > 0) {
    if (request != nullptr)
      return report(EINVAL, "request is not null in a group: nupa_ccl_group_end() returns the request");
    group_of_thread().collectives.push_back({&communicator, std::move(call)});
    return 0;
  }
  auto job = communicator.start(std::move(call));
  if (!job) return report(job.error());
  *request = new nupa_ccl_request{{{&communicator, std::move(*job), nullptr}}};
  return 0;
}

int run_or_start(const Begun& message, nupa_ccl_request** request) {
  if (t_group_depth > 0) {
    if (request != nullptr)
      return report(EINVAL, "request is not null in a group: nupa_ccl_group_end() returns the request");
    group_of_thread().messages.push_back(message);
    return 0;
  }
  if (const int error = begin_message(message, request != nullptr); error != 0) return error;
  if (request == nullptr) return report(message, message.wait());
  *request = new nupa_ccl_request{{message}};
  return 0;
}

}  // namespace nupa::ccl

using namespace nupa::ccl;

int Begun::wait() const {
  if (!communicator->is_here()) return communicator->ended().error;
  if (job != nullptr) return communicator->wait(job);
  const int error = communicator->messages().wait(message);
  if (status != nullptr) *status = {message->peer, message->tag, message->bytes / element_bytes};
  if (message->observed != nullptr) end_observing(*this, error);
  return error;
}

extern "C" {

NUPA_EXPORT const char* nupa_ccl_error_text(void) { return text_of_thread().c_str(); }

NUPA_EXPORT int nupa_ccl_wait(nupa_ccl_request* request) {
  if (request == nullptr) return report(EINVAL, "request is null");
  const std::unique_ptr<nupa_ccl_request> owned(request);
  return wait_for_all(*request);
}

NUPA_EXPORT int nupa_ccl_test(nupa_ccl_request* request, int* done) {
  if (request == nullptr || done == nullptr) return report(EINVAL, "request or done is null");
  *done = 1;
  for (const Begun& begun : request->all)
    if (!begun.is_done()) *done = 0;
  return 0;
}

NUPA_EXPORT int nupa_ccl_group_start(void) {
  ++t_group_depth;
  return 0;
}

NUPA_EXPORT int nupa_ccl_group_end(nupa_ccl_request** request) {
  if (t_group_depth > 1) {
    --t_group_depth;
    return request == nullptr
               ? 0
               : report(EINVAL, "request is not null in an inner group: the outer group's end returns the request");
  }
  CallGroup group;
  if (const int error = take_group(&group); error != 0) return error;
  return run_or_start(std::move(group), request);
}

}  // extern "C"
