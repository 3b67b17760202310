// SPDX-License-Identifier: Apache-2.0
/// The text that names a pool: NUPA_POOL, and the file that stands for it.
#include "transport/pool/medium/spec.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

namespace nupa::pool {
namespace {

Result<Spec> parse(std::string_view text) { return parse_spec(text, "NUPA_POOL"); }

/// The error text without the beginning, which has the variable and its value.
std::string error_of(const std::string& text) {
  const auto spec = parse(text);
  if (spec) return "accepted";
  EXPECT_EQ(spec.error().code(), EINVAL);
  const std::string begin = "NUPA_POOL=" + text + ": ";
  const std::string what = spec.error().what();
  EXPECT_TRUE(what.starts_with(begin)) << what;
  return what.substr(std::min(begin.size(), what.size()));
}

TEST(PoolSpec, PciFunction_WithBar_IsRead) {
  const auto spec = parse("pci:0000:0f:02.0,host=3,bar=2");
  ASSERT_TRUE(spec) << spec.error().what();
  EXPECT_EQ(spec->kind, MediumKind::kPci);
  EXPECT_EQ(spec->name, "0000:0f:02.0");
  EXPECT_EQ(spec->host, 3);
  EXPECT_EQ(spec->bar, 2u);
  EXPECT_EQ(spec->coherence, Coherence::kAuto);
  EXPECT_EQ(spec->medium(), "pci:0000:0f:02.0");
}

TEST(PoolSpec, DaxDevice_IsRead) {
  const auto spec = parse("/dev/dax0.0,host=1");
  ASSERT_TRUE(spec) << spec.error().what();
  EXPECT_EQ(spec->kind, MediumKind::kDax);
  EXPECT_EQ(spec->medium(), "/dev/dax0.0");
  EXPECT_EQ(spec->host, 1);
}

TEST(PoolSpec, File_WithCoherenceAndSeed_IsRead) {
  const auto spec = parse("file:/dev/shm/pool,coherence=none,seed=18446744073709551615,host=31");
  ASSERT_TRUE(spec) << spec.error().what();
  EXPECT_EQ(spec->kind, MediumKind::kFile);
  EXPECT_EQ(spec->name, "/dev/shm/pool");
  EXPECT_EQ(spec->coherence, Coherence::kNone);
  EXPECT_EQ(spec->seed, UINT64_MAX);
  EXPECT_EQ(spec->host, 31);
  EXPECT_EQ(parse("file:/a,host=0,coherence=full")->coherence, Coherence::kFull);
  EXPECT_EQ(parse("file:/a,host=0,coherence=auto")->coherence, Coherence::kAuto);
}

TEST(PoolSpec, Doorbell_IsThatOfTheMediumUnlessItIsTurnedOff) {
  EXPECT_EQ(parse("file:/a,host=0")->doorbell, DoorbellChoice::kAuto);
  EXPECT_EQ(parse("file:/a,host=0,doorbell=auto")->doorbell, DoorbellChoice::kAuto);
  EXPECT_EQ(parse("pci:0000:0f:02.0,doorbell=none,host=0")->doorbell, DoorbellChoice::kNone);
}

TEST(PoolSpec, WrongPart_IsNamed) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"", "'' is not a medium (expected pci:ADDRESS, /dev/daxN.N or file:PATH)"},
      {"/dev/sda,host=0", "'/dev/sda' is not a medium (expected pci:ADDRESS, /dev/daxN.N or file:PATH)"},
      {"pci:00:02.0,host=0", "'00:02.0' is not the address of a PCI function (expected for example pci:0000:00:02.0)"},
      {"pci:0000:00:02.x,host=0",
       "'0000:00:02.x' is not the address of a PCI function (expected for example pci:0000:00:02.0)"},
      {"file:pool,host=0", "'pool' is not an absolute path (expected for example file:/dev/shm/pool)"},
      {"file:/a", "host is missing (expected host=N, another one on each host)"},
      {"file:/a,host=32", "host=32: expected a whole number from 0 to 31"},
      {"file:/a,host=-1", "host=-1: expected a whole number from 0 to 31"},
      {"file:/a,host=", "host=: expected a whole number from 0 to 31"},
      {"file:/a,host=1x", "host=1x: expected a whole number from 0 to 31"},
      {"file:/a,host=1,host=1", "host is there twice"},
      {"file:/a,host=1,bar=0", "bar=0: only a medium pci: has a BAR"},
      {"pci:0000:00:02.0,host=1,bar=6", "bar=6: expected a whole number from 0 to 5"},
      {"pci:0000:00:02.0,host=1,seed=6", "seed=6: only a medium file: has a seed"},
      {"file:/a,host=1,coherence=some", "coherence=some: expected auto, none or full"},
      {"file:/a,host=1,doorbell=full", "doorbell=full: expected auto or none"},
      {"file:/a,host=1,seed=x", "seed=x: expected a whole number from 0 to 18446744073709551615"},
      {"file:/a,host=1,hosts=2", "'hosts' is not an option (expected host, bar, coherence, doorbell or seed)"},
      {"file:/a,host=1,,seed=1", "'' is not an option (expected NAME=VALUE)"},
      {"file:/a,1", "'1' is not an option (expected NAME=VALUE)"},
  };
  for (const auto& [text, error] : kWrong) EXPECT_EQ(error_of(text), error) << text;
}

TEST(PoolSpec, Json_EachKey_IsRead) {
  const auto spec = parse_spec_json(R"({"medium": "pci:0000:00:02.0", "host": 1, "bar": 2, "coherence": "none"})", "f");
  if (!spec && spec.error().code() == ENOTSUP) GTEST_SKIP() << "this build reads no JSON";
  ASSERT_TRUE(spec) << spec.error().what();
  EXPECT_EQ(spec->medium(), "pci:0000:00:02.0");
  EXPECT_EQ(spec->host, 1);
  EXPECT_EQ(spec->bar, 2u);
  EXPECT_EQ(spec->coherence, Coherence::kNone);
}

TEST(PoolSpec, Json_WrongContent_IsNamed) {
  const auto error = [](const char* text) {
    const auto spec = parse_spec_json(text, "pool.json");
    return spec ? "accepted" : std::string(spec.error().what());
  };
  if (error("{}").find("reads no JSON") != std::string::npos) GTEST_SKIP() << "this build reads no JSON";
  EXPECT_EQ(error(""), "pool.json: not a JSON object");
  EXPECT_EQ(error("[1]"), "pool.json: not a JSON object");
  EXPECT_EQ(error("{\"host\": 1}"), "pool.json: \"medium\" is missing, or not a text");
  EXPECT_EQ(error("{\"medium\": 1}"), "pool.json: \"medium\" is missing, or not a text");
  EXPECT_EQ(error(R"({"medium": "file:/a", "host": -1})"), "pool.json: \"host\" is neither a text nor a whole number");
  EXPECT_EQ(error(R"({"medium": "file:/a", "host": 1.5})"), "pool.json: \"host\" is neither a text nor a whole number");
  EXPECT_EQ(
      error(R"({"medium": "file:/a", "port": 1, "host": 1})"),
      "pool.json=file:/a,host=1,port=1: 'port' is not an option (expected host, bar, coherence, doorbell or seed)");
}

TEST(PoolSpec, Environment_VariableIsSet_NamesThePool) {
  setenv("NUPA_POOL", "file:/a,host=1", 1);
  auto spec = spec_from_environment();
  ASSERT_TRUE(spec) << spec.error().what();
  ASSERT_TRUE(spec->has_value());
  EXPECT_EQ((*spec)->name, "/a");
  setenv("NUPA_POOL", "file:/a", 1);
  spec = spec_from_environment();
  EXPECT_FALSE(spec);
  unsetenv("NUPA_POOL");
}

}  // namespace
}  // namespace nupa::pool
