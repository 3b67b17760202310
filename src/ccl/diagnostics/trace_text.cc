// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/trace_text.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <ctime>

#include "base/boot_id.h"
#include "base/clock.h"
#include "ccl/reduce/names.h"

namespace nupa::ccl {
namespace {

constexpr size_t kLongestLine = 1024;

__attribute__((format(printf, 2, 3))) void append(std::string* text, const char* format, ...) {
  char line[kLongestLine];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  *text += line;
}

/// A time in the unit of the trace format, microseconds.
struct Microseconds {
  char text[32];
  explicit Microseconds(int64_t ns) {
    std::snprintf(text, sizeof text, "%" PRId64 ".%03d", ns / 1000, static_cast<int>(ns % 1000));
  }
};

void append_times(const char* name, const Event& event, uint32_t rank, std::string* text) {
  append(text, "{\"name\":\"%s\",\"cat\":\"nupa\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%s,\"dur\":%s", name, rank,
         event.communicator, Microseconds(event.begin_ns).text, Microseconds(event.end_ns - event.begin_ns).text);
}

/// Appends an interval that may overlap others of its kind.
void append_span(const char* name, const char* kind, const Event& event, int64_t begin_ns, int64_t end_ns,
                 uint32_t rank, const std::string& arguments, std::string* text) {
  const auto edge = [&](const char* phase, int64_t at_ns, const std::string& more) {
    append(text,
           "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"%s\",\"id\":\"%s %u.%u.%" PRIu64
           "\",\"pid\":%u,\"tid\":%u,\"ts\":%s,\"args\":{%s}},\n",
           name, kind, phase, kind, rank, event.communicator, event.number, rank, event.communicator,
           Microseconds(at_ns).text, more.c_str());
  };
  edge("b", begin_ns, arguments);
  edge("e", end_ns, "");
}

std::string arguments_of(const Event& event) {
  std::string text;
  append(&text, "\"rank\":%u,\"ranks\":%u,\"number\":%" PRIu64 ",\"bytes\":%zu,\"count\":%zu,\"type\":\"%s\"",
         event.rank, event.ranks, event.number, event.bytes, event.count, name_of(static_cast<Type>(event.type)));
  if (event.op != NUPA_CCL_NONE)
    append(&text, ",\"op\":\"%s\"",
           event.op < static_cast<int>(kOperators) ? name_of(static_cast<Operator>(event.op)) : "user-defined");
  if (event.root != NUPA_CCL_ANY_RANK) append(&text, ",\"root\":%u", event.root);
  if (event.algorithm != nullptr) append(&text, ",\"algorithm\":\"%s\"", event.algorithm);
  append(&text, ",\"queued_us\":%s,\"waited_us\":%s,\"error\":%d", Microseconds(event.begin_ns - event.queued_ns).text,
         Microseconds(event.waited_ns).text, event.error);
  return text;
}

void append_operation(const Event& event, uint32_t rank, std::string* text) {
  append_times(event.operation, event, rank, text);
  *text += ",\"args\":{" + arguments_of(event) + "}},\n";
  if (event.queued_ns < event.begin_ns)
    append_span(event.operation, "queued", event, event.queued_ns, event.begin_ns, rank, "", text);
}

void append_wait(const Event& event, uint32_t rank, std::string* text) {
  append_times("wait", event, rank, text);
  if (event.root == NUPA_CCL_ANY_RANK)
    *text += ",\"args\":{}},\n";
  else
    append(text, ",\"args\":{\"for_rank\":%u}},\n", event.root);
}

int64_t realtime_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * base::kNsPerSecond + now.tv_nsec;
}

}  // namespace

std::string trace_head(uint32_t rank) {
  char host[65] = {};
  if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
  std::string boot;
  for (const uint8_t byte : base::boot_id()) append(&boot, "%02x", byte);
  std::string text;
  append(&text,
         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u (process %d on %s)\"}},\n",
         rank, rank, getpid(), host);
  append(&text, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"sort_index\":%u}},\n", rank,
         rank);
  append(&text,
         "{\"name\":\"nupa_clock\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"monotonic_ns\":%" PRId64
         ",\"realtime_ns\":%" PRId64 ",\"boot\":\"%s\"}},\n",
         rank, base::now_ns(), realtime_ns(), boot.c_str());
  return text;
}

void trace_text(const TraceRecord& record, uint32_t rank, std::string* text) {
  using enum TraceRecord::Kind;
  const Event& event = record.event;
  switch (record.kind) {
    case kOperation:
      return append_operation(event, rank, text);
    case kMessage:
      return append_span(event.operation, "message", event, event.begin_ns, event.end_ns, rank, arguments_of(event),
                         text);
    case kWait:
      return append_wait(event, rank, text);
    case kCheck:
      append_times("check", event, rank, text);
      *text += ",\"args\":{}},\n";
      return;
    case kCommunicator:
      append(text,
             "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"communicator %u (rank "
             "%u of %u)\"}},\n",
             rank, event.communicator, event.communicator, event.rank, event.ranks);
  }
}

void trace_text_of_lost(uint64_t records, int64_t at_ns, uint32_t rank, std::string* text) {
  append(text,
         "{\"name\":\"lost\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%u,\"tid\":0,\"ts\":%s,\"args\":{\"records\":%" PRIu64
         "}},\n",
         rank, Microseconds(at_ns).text, records);
}

}  // namespace nupa::ccl
