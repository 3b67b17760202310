// SPDX-License-Identifier: Apache-2.0
/// nupa pool: pools that are made, shown, cleaned and measured, and inputs that are refused.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "json/json.h"
#include "pool_member.h"
#include "program.h"

namespace nupa::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class CliPool : public ::testing::Test {
 protected:
  Start nupa(Words words, uint16_t host = 0, const std::string& more = "") {
    Start start;
    start.arguments = {"pool"};
    start.arguments.insert(start.arguments.end(), words.begin(), words.end());
    start.environment["NUPA_POOL"] = spec(host) + more;
    return start;
  }
  std::string spec(uint16_t host) const { return "file:" + (folder / "pool") + ",host=" + std::to_string(host); }
  void format(Words more = {}) {
    Words words = {"format", "--size", "4M"};
    words.insert(words.end(), more.begin(), more.end());
    const Said said = run_nupa(nupa(words));
    ASSERT_EQ(said.status, 0) << said.err;
  }
  json json_of(Words words, uint16_t host = 0) {
    words.push_back("--json");
    const Said said = run_nupa(nupa(words, host));
    EXPECT_EQ(said.status, 0) << said.err;
    return parse_json(said.out).value_or(json());
  }
  Folder folder;
};

TEST_F(CliPool, Format_ThenStatus_ShowsHostsAndBlocks) {
  const Said made = run_nupa(nupa({"format", "--size", "8M", "--hosts", "3", "--ring-size", "16K"}));
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_TRUE(has(made.out, "8 MiB, 3 hosts, rings of 16 KiB")) << made.out;
  const json status = json_of({"status"});
  EXPECT_EQ(status["bytes"], 8 << 20);
  EXPECT_EQ(status["ring_bytes"], 16 << 10);
  EXPECT_EQ(status["caches"], "coherent");
  ASSERT_EQ(status["by_host"].size(), 3u);
  for (const json& host : status["by_host"]) {
    EXPECT_FALSE(host["known"]);
    EXPECT_EQ(host["blocks"]["free"], host["blocks"]["total"]);
    EXPECT_EQ(host["blocks"]["total"], status["blocks"]);
  }
  const Said table = run_nupa(nupa({"status"}));
  EXPECT_TRUE(has(table.out, "QUARANTINED")) << table.out;
  EXPECT_EQ(json_of({"format", "--force"})["hosts"], 2) << "the usual number";
}

TEST_F(CliPool, WithoutAPool_SaysHowToGiveOne) {
  Start start = nupa({"status"});
  start.environment.clear();
  start.without = {"NUPA_POOL"};
  const Said said = run_nupa(start);
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(said.err, "no pool is given (use --pool, NUPA_POOL or /etc/nupa/pool.json)")) << said.err;
}

TEST_F(CliPool, WrongVariable_IsAFailureAndWrongOptionAUsageError) {
  Start start = nupa({"status"});
  start.environment["NUPA_POOL"] = "file:pool,host=0";
  EXPECT_EQ(run_nupa(start).status, 1);
  EXPECT_TRUE(has(run_nupa(start).err, "NUPA_POOL=file:pool,host=0: 'pool' is not an absolute path"));
  start = nupa({"status", "--pool", "file:pool,host=0"});
  const Said said = run_nupa(start);
  EXPECT_EQ(said.status, 2);
  EXPECT_TRUE(has(said.err, "--pool: file:pool,host=0: 'pool' is not an absolute path")) << said.err;
}

TEST_F(CliPool, Format_SmallerThanTheFile_IsRefused) {
  format();
  const Said said = run_nupa(nupa({"format", "--size", "2M"}));
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(said.err, "has 4194304 bytes already (remove the file first)")) << said.err;
}

TEST_F(CliPool, EachCommand_WithoutThePool_NamesTheFile) {
  for (const char* const command : {"status", "clean", "check"}) {
    const Said said = run_nupa(nupa({command}));
    EXPECT_EQ(said.status, 1) << command;
    EXPECT_TRUE(has(said.err, "cannot open the pool file " + (folder / "pool"))) << said.err;
  }
  folder.write("pool", std::string(1 << 20, 'x'));
  for (const char* const command : {"status", "clean", "check"}) {
    const Said said = run_nupa(nupa({command}));
    EXPECT_EQ(said.status, 1) << command;
    EXPECT_TRUE(has(said.err, "holds no pool (nupa pool format makes one)")) << said.err;
  }
}

TEST_F(CliPool, ProcessOfThePool_IsShownAndProtectsItAndIsCleanedWhenItIsDead) {
  format();
  PoolMember member(spec(1));
  ASSERT_TRUE(member.joined());
  EXPECT_TRUE(await([&] { return json_of({"status"})["by_host"][1]["alive"] == true; }));
  const json host = json_of({"status"})["by_host"][1];
  ASSERT_EQ(host["processes"].size(), 1u);
  EXPECT_GT(host["blocks"]["memory"], 0);
  const Said refused = run_nupa(nupa({"format"}));
  EXPECT_EQ(refused.status, 1);
  EXPECT_TRUE(has(refused.err, "the pool is in use by process")) << refused.err;
  EXPECT_TRUE(json_of({"clean"}, 1)["processes"].empty()) << "it lives";
  member.end();
  const json cleaned = json_of({"clean"}, 1);
  EXPECT_EQ(cleaned["processes"].size(), 1u);
  EXPECT_GT(cleaned["freed_blocks"], 0);
  EXPECT_EQ(cleaned["blocks"]["free"], cleaned["blocks"]["total"]);
  EXPECT_TRUE(has(run_nupa(nupa({"clean"}, 1)).out, "nothing to clean for host 1"));
  EXPECT_EQ(run_nupa(nupa({"format"})).status, 0);
}

TEST_F(CliPool, Check_Alone_MeasuresEachKindOfCaches) {
  format();
  for (const char* const coherence : {"full", "none"}) {
    Start start = nupa({"check", "--alone", "--json"}, 0, std::string(",coherence=") + coherence);
    const Said said = run_nupa(start);
    ASSERT_EQ(said.status, 0) << said.err;
    const json measured = parse_json(said.out).value_or(json());
    EXPECT_EQ(measured["caches"], std::string(coherence) == "full" ? "coherent" : "torn");
    for (const char* const key : {"load_ns", "store_ns", "to_bytes_per_second", "from_bytes_per_second"})
      EXPECT_GT(measured[key], 0) << key;
  }
}

TEST_F(CliPool, Check_OnBothHosts_ExchangesLines) {
  format();
  for (const char* const coherence : {",coherence=full", ",coherence=none"}) {
    Program one(nupa({"check"}, 0, coherence));
    Program other(nupa({"check", "--json"}, 1, coherence));
    EXPECT_EQ(one.wait(), 0) << one.err();
    EXPECT_EQ(other.wait(), 0) << other.err();
    EXPECT_TRUE(has(one.out(), "host 1: 368 of 368 lines are right")) << one.out();
    const json measured = parse_json(other.out()).value_or(json());
    EXPECT_EQ(measured["peer"]["host"], 0);
    EXPECT_EQ(measured["peer"]["wrong_lines"], 0);
    EXPECT_GT(measured["peer"]["one_way_ns"], 0);
  }
}

TEST_F(CliPool, Check_HostsThatDoNotShareTheMemory_FailsOnBoth) {
  format();
  std::filesystem::copy_file(folder / "pool", folder / "other");
  Program one(nupa({"check", "--timeout", "1"}));
  Start start = nupa({"check", "--timeout", "1"});
  start.environment["NUPA_POOL"] = "file:" + (folder / "other") + ",host=1";
  Program other(start);
  EXPECT_EQ(one.wait(), 1);
  EXPECT_EQ(other.wait(), 1);
  EXPECT_TRUE(has(one.err(), "no `nupa pool check` runs on host 1")) << one.err();
  EXPECT_TRUE(has(other.err(), "if it runs, the hosts do not share this memory")) << other.err();
}

TEST_F(CliPool, Check_NoOtherHost_FailsWithinItsTime) {
  format();
  const Said said = run_nupa(nupa({"check", "--timeout", "0.2"}));
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(said.err, "no `nupa pool check` runs on host 1 (start it there, too, or use --alone")) << said.err;
  format({"--hosts", "3"});
  EXPECT_TRUE(has(run_nupa(nupa({"check"})).err, "the pool has 3 hosts: name the other one by --with"));
  EXPECT_TRUE(has(run_nupa(nupa({"check", "--with", "0"})).err, "--with 0: expected another host from 0 to 2"));
  EXPECT_TRUE(has(run_nupa(nupa({"check"}, 5)).err, "host=5: the pool was formatted for hosts 0 to 2"));
}

TEST_F(CliPool, Numbers_OutOfRange_AreUsageErrors) {
  for (const Words& words : std::vector<Words>{{"format", "--hosts", "0"},
                                               {"format", "--hosts", "33"},
                                               {"format", "--size", "0"},
                                               {"format", "--size", "1Q"},
                                               {"format", "--size", "99999999999G"},
                                               {"format", "--ring-size", "48K"},
                                               {"format", "--ring-size", "1K"},
                                               {"check", "--with", "32"},
                                               {"check", "--timeout", "nan"},
                                               {"check", "--alone", "--with", "1"},
                                               {"check", "--alone", "--timeout", "1"},
                                               {"status", "--bogus"},
                                               {"bogus"},
                                               {}}) {
    const Said said = run_nupa(nupa(words));
    EXPECT_EQ(said.status, 2) << ::testing::PrintToString(words) << said.err;
    EXPECT_TRUE(has(said.err, "--help)")) << said.err;
  }
}

}  // namespace
}  // namespace nupa::test
