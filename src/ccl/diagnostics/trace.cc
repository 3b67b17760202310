// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/trace.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/settings.h"
#include "ccl/diagnostics/trace_text.h"
#include "ccl/diagnostics/trace_writer.h"
#include "progress/lifecycle.h"
#include "progress/thread.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kWriteAtLeastEveryNs = 1'000'000'000;

std::atomic<uint32_t> communicators{0};

class Forks final : public progress::ForkParticipant {
 public:
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override {
    Trace::abandon();
    return true;
  }
};
[[gnu::constructor]] void join_forks() { progress::join_forks(progress::ForkStage::kDescriptors, new Forks); }

Result<void> open_once(const char* name, uint32_t rank, std::atomic<Trace*>* made,
                       Trace* (*make)(TraceFile, uint32_t)) {
  auto file = TraceFile::open(name, rank);
  if (!file) return fail(EINVAL, "NUPA_CCL_TRACE=", name, ": ", file.error().what());
  made->store(make(std::move(*file), rank));
  if (made->load() == nullptr) return {};
  is_anybody_observing.store(true);
  // A forked child has its parent's records but not its exit actions, so that it does not write them again.
  const progress::ExitAction flush{[](void* trace) { static_cast<Trace*>(trace)->flush(); }, made->load()};
  if (const int error = progress::at_exit(progress::ExitStage::kTraces, flush); error != 0)
    std::fprintf(stderr, "nupa: ccl: the end of the trace will be lost: %s\n", std::strerror(error));
  return {};
}

}  // namespace

std::atomic<Trace*> Trace::made_{nullptr};

Result<void> Trace::open(uint32_t rank) {
  static const auto* const opened = new Result<void>([rank]() -> Result<void> {
    const char* const name = base::text_setting("NUPA_CCL_TRACE");
    if (name == nullptr) return {};
    // It is never freed: threads may use it until the process exits.
    return open_once(name, rank, &made_, [](TraceFile file, uint32_t first_rank) -> Trace* {
      auto* const trace = new Trace(std::move(file), first_rank);
      const int error = trace->start();
      if (error == 0) return trace;
      std::fprintf(stderr, "nupa: ccl: cannot write a trace: no thread: %s\n", std::strerror(error));
      delete trace;
      return nullptr;
    });
  }());
  return *opened;
}

int Trace::start() {
  file_.write(trace_head(rank_));
  const auto started = progress::start_detached("nupa-trace", [this] { serve(); });
  return started ? 0 : started.error().code();
}

uint32_t Trace::add_communicator(uint32_t rank, uint32_t ranks) {
  const uint32_t number = ++communicators;
  Event event{};
  event.communicator = number;
  event.rank = rank;
  event.ranks = ranks;
  if (Trace* const trace = get()) trace->records_.put({TraceRecord::Kind::kCommunicator, event});
  return number;
}

void Trace::add(const Event& event) {
  const bool is_message = std::strcmp(event.operation, "send") == 0 || std::strcmp(event.operation, "recv") == 0;
  records_.put({is_message ? TraceRecord::Kind::kMessage : TraceRecord::Kind::kOperation, event});
}

void Trace::add_part(TraceRecord::Kind kind, uint32_t communicator, uint32_t rank, int64_t begin_ns, int64_t end_ns) {
  Event event{};
  event.communicator = communicator;
  event.root = rank;
  event.begin_ns = begin_ns;
  event.end_ns = end_ns;
  records_.put({kind, event});
}

void Trace::flush() {
  std::lock_guard lock(file_mutex_);
  write_records(records_.take(), rank_, &file_);
}

void Trace::serve() {
  while (true) {
    records_.wait_for_many(kWriteAtLeastEveryNs);
    flush();
  }
}

}  // namespace nupa::ccl
