// SPDX-License-Identifier: Apache-2.0
/// `nupa doctor` about the pool that NUPA_POOL names.
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "json/json.h"
#include "pool_member.h"
#include "program.h"
#include "transport/pool/medium/layout.h"

namespace nupa::test {
namespace {

using nlohmann::json;

class CliDoctorPool : public ::testing::Test {
 protected:
  std::string spec(const std::string& more = ",host=0") const { return "file:" + (folder / "pool") + more; }
  Start start(std::vector<std::string> words, const std::string& pool) const {
    Start start;
    start.arguments = std::move(words);
    start.environment["NUPA_POOL"] = pool;
    start.environment["NUPA_RUNTIME_DIR"] = folder / "run";
    return start;
  }
  void format() {
    const Said formatted = run_nupa(start({"pool", "format", "--size", "4M"}, spec()));
    ASSERT_EQ(formatted.status, 0) << formatted.err;
  }
  void look(const std::string& pool) {
    said = run_nupa(start({"doctor", "--json"}, pool));
    findings = parse_json(said.out).value_or(json());
    ASSERT_TRUE(findings.is_array()) << said.out << said.err;
  }
  void look() { look(spec()); }
  /// A finding's level, text and remedy; empty: it is not there.
  std::string about(const std::string& subject) const {
    for (const json& finding : findings)
      if (finding["subject"] == subject)
        return finding["level"].get<std::string>() + ": " + finding["found"].get<std::string>() + " -> " +
               finding["remedy"].get<std::string>();
    return "";
  }
  /// Changes a byte of the page of host 0.
  void flip(uint64_t offset) {
    const int fd = open((folder / "pool").c_str(), O_RDWR | O_CLOEXEC);
    uint8_t byte = 0;
    ASSERT_EQ(1, pread(fd, &byte, 1, static_cast<off_t>(offset)));
    byte ^= 0xff;
    ASSERT_EQ(1, pwrite(fd, &byte, 1, static_cast<off_t>(offset)));
    close(fd);
  }

  const std::string number = "pool: number of this host";
  Folder folder;
  Said said;
  json findings;
};

TEST_F(CliDoctorPool, NoPool_SaysHowToNameOne) {
  Start nupa = start({"doctor", "--json"}, "");
  nupa.environment.erase("NUPA_POOL");
  nupa.without = {"NUPA_POOL"};
  findings = parse_json(run_nupa(nupa).out).value_or(json());
  EXPECT_EQ(about("pool"), "OK: none (NUPA_POOL or /etc/nupa/pool.json names one) -> ");
  EXPECT_EQ(about(number), "");
}

TEST_F(CliDoctorPool, FreshPool_IsFineAndItsNumberFree) {
  format();
  look();
  EXPECT_EQ(said.status, 0) << said.out;
  EXPECT_EQ(about("pool"), "OK: " + spec() + ", layout version 2, 2 hosts, 4 MiB -> ");
  EXPECT_EQ(about(number), "OK: 0 of 0 to 1, free -> ");
  EXPECT_EQ(about("pool: other hosts"), "OK: none alive at present -> ");
  EXPECT_TRUE(has(about("pool: caches"), ": coherent")) << about("pool: caches");
  EXPECT_EQ(about("pool: doorbell"), "OK: futex: a process that waits sleeps -> ");
  EXPECT_EQ(about("pool: last nupa pool check"), "OK: none by this host since the format -> ");
}

TEST_F(CliDoctorPool, LastCheck_IsReported) {
  format();
  ASSERT_EQ(run_nupa(start({"pool", "check", "--alone"}, spec())).status, 0);
  look();
  const std::string alone = about("pool: last nupa pool check");
  EXPECT_TRUE(has(alone, "UTC: 8-byte load ")) << alone;
  EXPECT_TRUE(has(alone, "MB/s from it -> ")) << alone;
  Program one(start({"pool", "check"}, spec()));
  Program other(start({"pool", "check"}, spec(",host=1")));
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  look();
  EXPECT_TRUE(has(about("pool: last nupa pool check"), "with host 1: 368 of 368 lines right, one way "));
  // The last number of lines with another content: as another host's check would have found it.
  flip(pool::kHostsOffset + pool::kLastCheckLine * pool::kLineBytes + offsetof(pool::CheckLine, wrong_lines));
  look();
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(about("pool: last nupa pool check"), "with host 1: 113 of 368 lines right")) << said.out;
  EXPECT_TRUE(has(about("pool: last nupa pool check"), "PROBLEM")) << said.out;
}

TEST_F(CliDoctorPool, PoolThatCannotBeUsed_IsAProblemWithARemedy) {
  look();
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(about("pool"), "PROBLEM: cannot open the pool file " + (folder / "pool"))) << about("pool");
  EXPECT_TRUE(has(about("pool"), "nupa pool format --pool " + spec())) << about("pool");
  folder.write("pool", std::string(1 << 20, 'x'));
  look();
  EXPECT_TRUE(has(about("pool"), "PROBLEM: " + spec("") + ": holds no pool")) << about("pool");
  format();
  look(spec(",host=2"));
  EXPECT_EQ(said.status, 1);
  EXPECT_EQ(about(number),
            "PROBLEM: host=2: the pool was formatted for hosts 0 to 1 -> set host= to a number from 0 to "
            "1, another one on each host");
  look("file:pool,host=0");
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(about("pool"), "PROBLEM: NUPA_POOL=file:pool,host=0: 'pool' is not an absolute path"));
  EXPECT_TRUE(has(about("pool"), "-> correct NUPA_POOL")) << about("pool");
  flip(8);  // the version
  look();
  EXPECT_TRUE(has(about("pool"), "the pool has layout version 253, and this NUPA has version 2")) << about("pool");
}

TEST_F(CliDoctorPool, SlowChoices_AreNotes) {
  format();
  look(spec(",host=0,doorbell=none"));
  EXPECT_EQ(said.status, 0) << said.out;
  EXPECT_TRUE(has(about("pool: doorbell"), "NOTE: none: doorbell=none is set -> ")) << about("pool: doorbell");
  look(spec(",host=0,coherence=none"));
  EXPECT_EQ(said.status, 0) << said.out;
  EXPECT_TRUE(has(about("pool: caches"), "NOTE: torn")) << about("pool: caches");
  EXPECT_TRUE(has(about("pool: doorbell"), "NOTE: none: coherence=none")) << about("pool: doorbell");
}

TEST_F(CliDoctorPool, LivingHosts_AreReportedAndAStrangersNumberIsAProblem) {
  format();
  PoolMember member(spec());
  ASSERT_TRUE(member.joined());
  look();
  EXPECT_EQ(said.status, 0) << said.out;
  EXPECT_EQ(about(number), "OK: 0 of 0 to 1, this machine has it; 1 process -> ");
  look(spec(",host=1"));
  EXPECT_EQ(about("pool: other hosts"), "OK: alive: 0 -> ");
  flip(pool::kHostsOffset + offsetof(pool::HostLine, file_inode));
  look();
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(about(number), "PROBLEM: 0 of 0 to 1, in use by processes that opened the pool by another file"));
  flip(pool::kHostsOffset + offsetof(pool::HostLine, boot_id));
  look();
  EXPECT_EQ(said.status, 1);
  EXPECT_EQ(about(number),
            "PROBLEM: 0 of 0 to 1, in use by another machine: its heartbeat changes -> give each machine "
            "its own host=N; free: 1");
  member.end();
  look();
  EXPECT_EQ(said.status, 0) << said.out;
  EXPECT_TRUE(has(about(number), "OK: 0 of 0 to 1, free: an earlier boot had it")) << about(number);
}

}  // namespace
}  // namespace nupa::test
