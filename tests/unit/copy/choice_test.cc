// SPDX-License-Identifier: Apache-2.0
/// Tests of the choice of an engine, and of the search for work queues in folders that look like the kernel's.
#include "copy/choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "copy/portal.h"

namespace nupa::copy {
namespace {

namespace fs = std::filesystem;

class CopyChoice : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "nupa-dsa-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root = name;
    places = {root / "bus", root / "dev"};
    fs::create_directories(places.sysfs);
    fs::create_directories(places.devices);
  }
  void TearDown() override {
    fs::remove_all(root);
    for (const char* name : {"NUPA_COPY_ENGINE", "NUPA_COPY_ENGINE_BYTES", "NUPA_COPY_THREADS"}) unsetenv(name);
  }
  struct Queue {
    std::string device = "dsa0";
    std::string state = "enabled";
    std::string type = "user";
    std::string mode = "shared";
    std::string pasid = "1";
    bool has_file = true;
  };
  void add(const std::string& name, const Queue& queue) {
    const fs::path device = root / "devices" / queue.device;
    fs::create_directories(device / name);
    write(device / "pasid_enabled", queue.pasid);
    write(device / name / "state", queue.state);
    write(device / name / "type", queue.type);
    write(device / name / "mode", queue.mode);
    write(device / name / "size", "16");
    write(device / name / "max_transfer_size", "2097152");
    fs::create_symlink(device / name, fs::path(places.sysfs) / name);
    if (queue.has_file) write(fs::path(places.devices) / name, "");
  }
  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text << "\n"; }
  QueueInfo only() {
    const auto found = list_work_queues(places);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? QueueInfo{} : found.front();
  }
  Hooks hooks() {
    return {.ended = [] {},
            .moves = &moves,
            .started_threads = [](int) {},
            .writes_unguarded = [this] { writes_unguarded = true; }};
  }

  fs::path root;
  QueuePlaces places;
  std::shared_mutex moves;
  bool writes_unguarded = false;
};

TEST_F(CopyChoice, Settings_Defaults) {
  const auto choice = chosen_engine();
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->kind, Kind::kAuto);
  EXPECT_EQ(choice->threads, 1u);
  EXPECT_GT(choice->least_bytes, 4096u);
}

TEST_F(CopyChoice, Settings_EachWord) {
  const std::pair<const char*, Kind> words[] = {
      {"auto", Kind::kAuto}, {"none", Kind::kNone}, {"thread", Kind::kThread}, {"dsa", Kind::kDsa}};
  for (const auto& [word, kind] : words) {
    setenv("NUPA_COPY_ENGINE", word, 1);
    const auto choice = chosen_engine();
    ASSERT_TRUE(choice) << word;
    EXPECT_EQ(choice->kind, kind) << word;
  }
}

TEST_F(CopyChoice, Settings_WrongValues_AreErrorsThatNameThem) {
  const std::pair<const char*, const char*> wrong[] = {{"NUPA_COPY_ENGINE", "Thread"},
                                                       {"NUPA_COPY_ENGINE", "1"},
                                                       {"NUPA_COPY_ENGINE_BYTES", "0"},
                                                       {"NUPA_COPY_ENGINE_BYTES", "64k"},
                                                       {"NUPA_COPY_ENGINE_BYTES", "2147483649"},
                                                       {"NUPA_COPY_THREADS", "0"},
                                                       {"NUPA_COPY_THREADS", "17"}};
  for (const auto& [name, value] : wrong) {
    setenv(name, value, 1);
    const auto choice = chosen_engine();
    ASSERT_FALSE(choice) << name << value;
    EXPECT_EQ(choice.error().code(), EINVAL);
    EXPECT_NE(std::string(choice.error().what()).find(std::string(name) + "=" + value), std::string::npos);
    unsetenv(name);
  }
}

TEST_F(CopyChoice, Auto_WithoutDsa_IsNoEngine) {
  const auto engine = make_engine({.kind = Kind::kAuto, .threads = 1}, hooks(), places);
  ASSERT_TRUE(engine);
  EXPECT_EQ(*engine, nullptr);
  EXPECT_FALSE(writes_unguarded);
  const Report found = report({.kind = Kind::kAuto}, places);
  EXPECT_EQ(found.level, Report::Level::kFine);
  EXPECT_NE(found.found.find("no work queue of Intel DSA"), std::string::npos) << found.found;
}

TEST_F(CopyChoice, Dsa_WithoutDsa_IsAnErrorWithTheReason) {
  const auto engine = make_engine({.kind = Kind::kDsa}, hooks(), places);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code(), ENODEV);
  EXPECT_NE(std::string(engine.error().what()).find("NUPA_COPY_ENGINE=dsa: "), std::string::npos);
  EXPECT_EQ(report({.kind = Kind::kDsa}, places).level, Report::Level::kProblem);
}

TEST_F(CopyChoice, NoneAndThread_AreWhatTheyAre) {
  const auto none = make_engine({.kind = Kind::kNone}, hooks(), places);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
  const auto thread = make_engine({.kind = Kind::kThread, .threads = 2}, hooks(), places);
  ASSERT_TRUE(thread && *thread != nullptr);
  EXPECT_EQ((*thread)->name(), "thread");
  EXPECT_TRUE((*thread)->reports_end());
}

TEST_F(CopyChoice, WorkQueues_ThatCannotBeUsed_HaveTheirReasons) {
  add("wq0.0", {.state = "disabled"});
  add("wq0.1", {.type = "kernel"});
  add("wq1.0", {.device = "dsa1", .pasid = "0"});
  add("wq2.0", {.device = "dsa2", .has_file = false});
  add("wq3.0", {.device = "iax3"});
  const auto found = list_work_queues(places);
  ASSERT_EQ(found.size(), 4u) << "the queue of an IAA device is none of DSA";
  EXPECT_NE(found[0].obstacle.find("not enabled"), std::string::npos) << found[0].obstacle;
  EXPECT_NE(found[1].obstacle.find("kernel"), std::string::npos) << found[1].obstacle;
  EXPECT_NE(found[2].obstacle.find("shared virtual memory"), std::string::npos) << found[2].obstacle;
  EXPECT_NE(found[3].obstacle.find("No such file"), std::string::npos) << found[3].obstacle;
  const auto engine = make_engine({.kind = Kind::kDsa}, hooks(), places);
  ASSERT_FALSE(engine);
  for (const QueueInfo& each : found)
    EXPECT_NE(std::string(engine.error().what()).find(each.name + ": " + each.obstacle), std::string::npos);
}

TEST_F(CopyChoice, WorkQueue_OfAProcessorWithoutTheInstruction_CannotBeUsed) {
  add("wq0.0", {});
  add("wq0.1", {.mode = "dedicated"});
  const auto found = list_work_queues(places);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].shared);
  EXPECT_FALSE(found[1].shared);
  EXPECT_EQ(found[0].size, 16u);
  EXPECT_EQ(found[0].max_transfer, 2097152u);
  EXPECT_EQ(found[0].obstacle.empty(), portal_instructions().enqcmd) << found[0].obstacle;
  EXPECT_EQ(found[1].obstacle.empty(), portal_instructions().movdir64b) << found[1].obstacle;
}

TEST_F(CopyChoice, DedicatedQueue_IsUsedByNameOnly) {
  add("wq0.0", {.mode = "dedicated"});
  if (!only().obstacle.empty()) GTEST_SKIP() << only().obstacle;
  EXPECT_EQ(report({.kind = Kind::kAuto}, places).found.find("dsa"), std::string::npos);
  EXPECT_EQ(report({.kind = Kind::kDsa}, places).found, "dsa, wq0.0");
  const auto by_auto = make_engine({.kind = Kind::kAuto}, hooks(), places);
  ASSERT_TRUE(by_auto);
  EXPECT_EQ(*by_auto, nullptr);
  // A file that cannot be mapped as a portal: the reason is that of the kernel.
  const auto by_name = make_engine({.kind = Kind::kDsa}, hooks(), places);
  EXPECT_EQ(by_name.has_value(), writes_unguarded);
}

}  // namespace
}  // namespace nupa::copy
