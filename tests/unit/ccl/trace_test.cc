// SPDX-License-Identifier: Apache-2.0
/// Tests of the text and the file of a trace, and of the events that a profiler receives for one operation.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ccl/reduce/names.h"
#include "ccl/diagnostics/observe.h"
#include "ccl/diagnostics/trace.h"
#include "ccl/diagnostics/trace_file.h"
#include "ccl/diagnostics/trace_records.h"
#include "ccl/diagnostics/trace_text.h"
#include "ccl/diagnostics/trace_writer.h"

namespace nupa::ccl {
namespace {

/// A whole file with these elements.
std::string array_of(std::string elements) {
  elements.insert(0, "[\n");
  return elements.append("{\"name\":\"end\",\"ph\":\"M\",\"pid\":0,\"args\":{}}\n]\n");
}

Event traced_event() {
  Event event{};
  event.operation = "all_reduce";
  event.algorithm = "ring";
  event.communicator = 2;
  event.rank = 1;
  event.ranks = 3;
  event.root = NUPA_CCL_ANY_RANK;
  event.number = 7;
  event.count = 10;
  event.bytes = 40;
  event.type = NUPA_CCL_INT32;
  event.op = NUPA_CCL_SUM;
  event.queued_ns = event.begin_ns = 5'000'042;
  event.end_ns = 6'000'000;
  event.waited_ns = 1'001;
  return event;
}

std::string text_of(TraceRecord::Kind kind, const Event& event) {
  std::string text;
  trace_text({kind, event}, 9, &text);
  return text;
}

TEST(CclTraceText, Operation_IsOneInterval_WithItsArguments) {
  EXPECT_EQ(
      text_of(TraceRecord::Kind::kOperation, traced_event()),
      "{\"name\":\"all_reduce\",\"cat\":\"nupa\",\"ph\":\"X\",\"pid\":9,\"tid\":2,\"ts\":5000.042,\"dur\":999.958,"
      "\"args\":{\"rank\":1,\"ranks\":3,\"number\":7,\"bytes\":40,\"count\":10,\"type\":\"int32\",\"op\":\"sum\","
      "\"algorithm\":\"ring\",\"queued_us\":0.000,\"waited_us\":1.001,\"error\":0}},\n");
}

TEST(CclTraceText, Operation_FieldsThatAreNotSet_AreLeftOut) {
  Event event = traced_event();
  event.op = NUPA_CCL_NONE;
  event.algorithm = nullptr;
  event.root = 2;
  event.error = ECONNRESET;
  const std::string text = text_of(TraceRecord::Kind::kOperation, event);
  EXPECT_EQ(text.find("\"op\""), std::string::npos);
  EXPECT_EQ(text.find("algorithm"), std::string::npos);
  EXPECT_NE(text.find(",\"root\":2,"), std::string::npos);
  EXPECT_NE(text.find(",\"error\":" + std::to_string(ECONNRESET) + "}"), std::string::npos);
  event.op = kOperators;
  EXPECT_NE(text_of(TraceRecord::Kind::kOperation, event).find("\"op\":\"user-defined\""), std::string::npos);
}

TEST(CclTraceText, Operation_WasQueued_HasAnIntervalForTheQueue) {
  Event event = traced_event();
  event.queued_ns -= 2'000;
  const std::string text = text_of(TraceRecord::Kind::kOperation, event);
  EXPECT_NE(text.find("\"queued_us\":2.000"), std::string::npos) << text;
  EXPECT_NE(text.find("{\"name\":\"all_reduce\",\"cat\":\"queued\",\"ph\":\"b\",\"id\":\"queued 9.2.7\",\"pid\":9,"
                      "\"tid\":2,\"ts\":4998.042,\"args\":{}},\n"
                      "{\"name\":\"all_reduce\",\"cat\":\"queued\",\"ph\":\"e\",\"id\":\"queued 9.2.7\",\"pid\":9,"
                      "\"tid\":2,\"ts\":5000.042,\"args\":{}},\n"),
            std::string::npos)
      << text;
}

TEST(CclTraceText, Message_IsAnAsyncInterval_ThatMayOverlap) {
  Event event = traced_event();
  event.operation = "send";
  event.op = NUPA_CCL_NONE;
  event.root = 0;
  const std::string text = text_of(TraceRecord::Kind::kMessage, event);
  EXPECT_TRUE(text.starts_with("{\"name\":\"send\",\"cat\":\"message\",\"ph\":\"b\",\"id\":\"message 9.2.7\"")) << text;
  EXPECT_NE(text.find("\"ts\":5000.042,\"args\":{\"rank\":1,"), std::string::npos) << text;
  EXPECT_NE(text.find("\"ph\":\"e\",\"id\":\"message 9.2.7\",\"pid\":9,\"tid\":2,\"ts\":6000.000,\"args\":{}},\n"),
            std::string::npos)
      << text;
}

TEST(CclTraceText, Wait_ForOneRank_NamesIt) {
  Event event = traced_event();
  EXPECT_TRUE(text_of(TraceRecord::Kind::kWait, event).ends_with(",\"args\":{}},\n"));
  event.root = 4;
  EXPECT_TRUE(text_of(TraceRecord::Kind::kWait, event).ends_with(",\"args\":{\"for_rank\":4}},\n"));
  EXPECT_TRUE(
      text_of(TraceRecord::Kind::kCheck, event).starts_with("{\"name\":\"check\",\"cat\":\"nupa\",\"ph\":\"X\""));
}

TEST(CclTraceText, CommunicatorsAndLostRecords_AreNamed) {
  EXPECT_EQ(text_of(TraceRecord::Kind::kCommunicator, traced_event()),
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":9,\"tid\":2,\"args\":{\"name\":\"communicator 2 (rank 1 of "
            "3)\"}},\n");
  std::string text;
  trace_text_of_lost(12, 3'000'001, 9, &text);
  EXPECT_EQ(
      text,
      "{\"name\":\"lost\",\"ph\":\"i\",\"s\":\"p\",\"pid\":9,\"tid\":0,\"ts\":3000.001,\"args\":{\"records\":12}},"
      "\n");
}

class CclTraceFile : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_), nullptr); }
  void TearDown() override {
    for (const std::string& name : names_) unlink(path_of(name).c_str());
    rmdir(folder_);
  }
  std::string path_of(const std::string& name) const { return std::string(folder_) + "/" + name; }
  /// What is in the file of this name, which goes with the test.
  std::string read(const std::string& name) {
    names_.push_back(name);
    std::ifstream file(path_of(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  char folder_[40] = "/tmp/nupa-ccl-trace-file-XXXXXX";
  std::vector<std::string> names_;
};

TEST_F(CclTraceFile, Write_AfterEachCall_FileIsAValidArray) {
  auto file = TraceFile::open(path_of("a.%r"), 3);
  ASSERT_TRUE(file) << file.error().what();
  EXPECT_EQ(read("a.3"), array_of(""));
  file->write("{\"first\":1},\n");
  EXPECT_EQ(read("a.3"), array_of("{\"first\":1},\n"));
  file->write("");
  file->write("{\"second\":2},\n");
  EXPECT_EQ(read("a.3"), array_of("{\"first\":1},\n{\"second\":2},\n"));
  EXPECT_TRUE(TraceFile::open(path_of("a.%r"), 3));
  EXPECT_EQ(read("a.3"), array_of("")) << "what was there is lost";
}

TEST_F(CclTraceFile, Open_NameWithPlaceholders_IsExpanded) {
  char host[65] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  const std::string process = std::to_string(getpid());
  const struct {
    std::string name, file;
  } names[] = {{"", "rank-7.json"},
               {"plain", "plain.7"},
               {"%r-%r", "7-7"},
               {"of-%p", "of-" + process},
               {"%h", std::string(host) + ".7"},
               {"%h.%p", std::string(host) + "." + process}};
  for (const auto& [name, expected] : names) {
    const auto file = TraceFile::open(name.empty() ? folder_ : path_of(name), 7);
    ASSERT_TRUE(file) << name;
    EXPECT_FALSE(read(expected).empty()) << expected;
  }
}

TEST_F(CclTraceFile, OpenOrWrite_Fails_ReportsItOnce) {
  const auto none = TraceFile::open(path_of("no/such.%r"), 0);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ENOENT);
  EXPECT_NE(std::string_view(none.error().what()).find("no/such.0: "), std::string::npos) << none.error().what();
  ASSERT_EQ(symlink("/dev/full", path_of("full.0").c_str()), 0);
  names_.push_back("full.0");
  // A full disk ends the trace, and not the program.
  ::testing::internal::CaptureStderr();
  auto device = TraceFile::open(path_of("full.%r"), 0);
  ASSERT_TRUE(device);
  device->write("{},\n");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("the trace is incomplete: " + path_of("full.0") + ": No space left on device\n"), text.npos)
      << text;
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "once: " << text;
}

TEST_F(CclTraceFile, Put_BufferIsFull_CountsTheLostRecords) {
  constexpr size_t kHeld = 3, kTooMany = 5;
  TraceRecords records(kHeld, kHeld);
  for (const size_t too_many : {kTooMany, size_t{0}}) {
    auto file = TraceFile::open(path_of("many.%r"), 0);
    ASSERT_TRUE(file);
    for (size_t i = 0; i < kHeld + too_many; ++i) records.put({TraceRecord::Kind::kOperation, traced_event()});
    const TraceRecords::Taken taken = records.take();
    EXPECT_EQ(taken.records.size(), kHeld);
    EXPECT_EQ(taken.lost, too_many);
    write_records(taken, 9, &*file);
    std::string elements;
    for (size_t i = 0; i < kHeld; ++i) elements += text_of(TraceRecord::Kind::kOperation, traced_event());
    if (too_many > 0) trace_text_of_lost(too_many, traced_event().end_ns, 9, &elements);
    EXPECT_EQ(read("many.0"), array_of(elements));
  }
  EXPECT_TRUE(records.take().records.empty());
}

TEST_F(CclTraceFile, Write_TextLongerThanABuffer_IsWrittenInParts) {
  auto file = TraceFile::open(path_of("long.%r"), 0);
  ASSERT_TRUE(file);
  TraceRecords::Taken taken;
  taken.records.assign(10'000, {TraceRecord::Kind::kOperation, traced_event()});  // more than two pieces
  write_records(taken, 9, &*file);
  std::string elements;
  for (size_t i = 0; i < taken.records.size(); ++i) elements += text_of(TraceRecord::Kind::kOperation, traced_event());
  EXPECT_TRUE(read("long.0") == array_of(elements));
}

TEST(CclTraceRecords, Put_ManyRecords_WakeTheWriter) {
  constexpr size_t kMany = 4;
  TraceRecords records(kMany, 100);
  for (size_t i = 0; i + 1 < kMany; ++i) records.put({TraceRecord::Kind::kOperation, traced_event()});
  records.wait_for_many(1'000'000);
  EXPECT_EQ(records.take().records.size(), kMany - 1) << "it waits no longer than that";
  constexpr auto kFarAway = std::chrono::seconds(60);
  std::chrono::nanoseconds waited{0};
  std::thread writer([&] {
    const int64_t begin_ns = base::now_ns();
    records.wait_for_many(std::chrono::nanoseconds(kFarAway).count());
    waited = std::chrono::nanoseconds(base::now_ns() - begin_ns);
  });
  // sleep: the writer sleeps by then; if it does not, it finds the records at once
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (size_t i = 0; i < kMany; ++i) records.put({TraceRecord::Kind::kOperation, traced_event()});
  writer.join();
  EXPECT_LT(waited, kFarAway) << "it was not woken";
}

TEST_F(CclTraceFile, Open_Descriptor_IsCloseOnExec) {
  const auto file = TraceFile::open(path_of("own.%r"), 0);
  ASSERT_TRUE(file);
  EXPECT_FALSE(read("own.0").empty());
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != path_of("own.0")) continue;
    ++found;
    EXPECT_NE(fcntl(std::stoi(entry.path().filename().string()), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(found, 1);
}

struct Notified {
  std::vector<Event> begun, ended;
};
void note_begin(const nupa_ccl_event* event, void* context) {
  static_cast<Notified*>(context)->begun.push_back(*event);
}
void note_end(const nupa_ccl_event* event, void* context) { static_cast<Notified*>(context)->ended.push_back(*event); }

TEST(CclObserved, Observed_TimesThatAreSet_AreKept) {
  Notified noted;
  ASSERT_EQ(set_profiler(note_begin, note_end, &noted), 0);
  const int64_t before = base::now_ns();
  Event event = traced_event();
  event.begin_ns = event.queued_ns = event.end_ns = 0;
  Observed(event).end();
  event.queued_ns = 11;
  event.end_ns = before * 2;
  Observed(event).end();
  ASSERT_EQ(set_profiler(nullptr, nullptr, nullptr), 0);
  ASSERT_EQ(noted.begun.size(), 2u);
  ASSERT_EQ(noted.ended.size(), 2u);
  EXPECT_GE(noted.begun[0].begin_ns, before);
  EXPECT_EQ(noted.begun[0].queued_ns, noted.begun[0].begin_ns) << "it did not wait for a turn";
  EXPECT_GE(noted.ended[0].end_ns, noted.begun[0].begin_ns);
  EXPECT_EQ(noted.begun[1].queued_ns, 11);
  EXPECT_EQ(noted.ended[1].end_ns, before * 2);
}

TEST(CclObserved, Observed_ProfilerChangesMeanwhile_EndsWithTheFunctionsItBeganWith) {
  Notified first, second;
  ASSERT_EQ(set_profiler(note_begin, note_end, &first), 0);
  Observed observed(traced_event());
  ASSERT_EQ(set_profiler(note_begin, note_end, &second), 0);
  observed.end();
  ASSERT_EQ(set_profiler(nullptr, note_end, &second), 0);
  Observed(traced_event()).end();
  ASSERT_EQ(set_profiler(note_begin, nullptr, &second), 0);
  Observed(traced_event()).end();
  ASSERT_EQ(set_profiler(nullptr, nullptr, nullptr), 0);
  Observed(traced_event()).end();
  EXPECT_EQ(first.begun.size(), 1u);
  EXPECT_EQ(first.ended.size(), 1u);
  EXPECT_EQ(second.begun.size(), 1u);
  EXPECT_EQ(second.ended.size(), 1u);
}

}  // namespace
}  // namespace nupa::ccl
