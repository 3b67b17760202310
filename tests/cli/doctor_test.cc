// SPDX-License-Identifier: Apache-2.0
/// `nupa doctor` about the pool that NUPA_POOL names, and about the libraries of a program.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
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

/// `nupa doctor` about the verbs libraries of a program.
class CliDoctorProgram : public ::testing::Test {
 protected:
  /// "LEVEL subject: text" of each finding.
  static std::vector<std::string> findings_of(const Said& said) {
    std::vector<std::string> findings;
    for (const json& one : parse_json(said.out).value_or(json()))
      findings.push_back(one["level"].get<std::string>() + " " + one["subject"].get<std::string>() + ": " +
                         one["found"].get<std::string>());
    return findings;
  }
  static bool has_one(const std::vector<std::string>& findings, const std::string& head, const std::string& part) {
    return std::any_of(findings.begin(), findings.end(),
                       [&](const std::string& one) { return one.starts_with(head) && has(one, part); });
  }
  std::string built(const std::string& name, const std::string& text, const std::string& options) const {
    return test::built(folder, name, text, options);
  }

  static constexpr const char* kUser =
      "void* ibv_get_device_list(int*); int pause(void); int main() { ibv_get_device_list(0); return pause(); }";
  Folder folder;
};

TEST_F(CliDoctorProgram, Program_LinkedDynamically_GetsNupasLibrary) {
  const std::string program = built("user", kUser, "-libverbs");
  const Said said = run_nupa({"doctor", "--json", "--", program, "--option"});
  EXPECT_EQ(said.status, 0) << said.err;
  const auto findings = findings_of(said);
  EXPECT_TRUE(has_one(findings, "OK program: ", program)) << said.out;
  EXPECT_TRUE(has_one(findings, "OK libibverbs: ", "/libibverbs.so.1 is NUPA's")) << said.out;
  EXPECT_TRUE(has_one(findings, "OK librdmacm: ", "/librdmacm.so.1 is NUPA's")) << said.out;
  EXPECT_EQ(said.out.find("comes before"), std::string::npos) << said.out;
}

TEST_F(CliDoctorProgram, Program_WithItsOwnLibrary_GetsNupasBeforeIt) {
  built("libibverbs-3f2a.so.1", "void* ibv_get_device_list(int* n) { return n; }", "-shared -fPIC");
  const std::string program = built("user", kUser, (folder / "libibverbs-3f2a.so.1") + " -Wl,-rpath," + (folder / ""));
  const Said said = run_nupa({"doctor", "--json", program});
  EXPECT_EQ(said.status, 0) << said.out;
  EXPECT_TRUE(has_one(findings_of(said), "OK libibverbs: ",
                      "/libibverbs.so.1 is NUPA's, and comes before " + (folder / "libibverbs-3f2a.so.1")))
      << said.out;
}

TEST_F(CliDoctorProgram, Program_WithTheLibraryInIt_IsAProblem) {
  const std::string program =
      built("user", "void* ibv_get_device_list(int* n) { return n; } int main() { return 0; }", "-static");
  const Said said = run_nupa({"doctor", "--json", program});
  EXPECT_EQ(said.status, 1);
  const auto findings = findings_of(said);
  EXPECT_TRUE(has_one(findings, "NOTE program: ", "is linked statically")) << said.out;
  EXPECT_TRUE(has_one(findings, "PROBLEM libibverbs: ", program + " contains it")) << said.out;
}

TEST_F(CliDoctorProgram, Program_ThatIsNone_IsNamed) {
  const std::string plain = folder.write("plain", "no program\n", 0700);
  EXPECT_TRUE(
      has_one(findings_of(run_nupa({"doctor", "--json", plain})), "PROBLEM program: ", "not a program of this"));
  EXPECT_TRUE(
      has_one(findings_of(run_nupa({"doctor", "--json", "/no/such"})), "PROBLEM program: ", "/no/such: not found"));
  // A header that points beyond the end of the file.
  const std::string cut = folder / "cut";
  std::filesystem::copy_file("/bin/true", cut);
  for (const size_t bytes : {1, 63, 64, 200, 4000}) {
    std::filesystem::resize_file(cut, bytes);
    EXPECT_LT(run_nupa({"doctor", "--json", cut}).status, 2) << bytes;
  }
}

TEST_F(CliDoctorProgram, Script_ItsInterpreterIsLookedAt) {
  const std::string script = folder.write("script", "#!/bin/sh\nexit 0\n", 0700);
  EXPECT_TRUE(has_one(findings_of(run_nupa({"doctor", "--json", script})), "OK program: ", "/bin/sh"));
}

TEST_F(CliDoctorProgram, Process_UnderNupaRun_HasNupasLibraryAndAnotherOneNot) {
  const std::string program = built("user", kUser, "-libverbs");
  const auto look = [](pid_t pid) {
    // It loads its libraries before it waits.
    Said said;
    EXPECT_TRUE(await([&] {
      said = run_nupa({"doctor", "--json", "--pid", std::to_string(pid)});
      return has(said.out, "libibverbs.so");
    }));
    return said;
  };
  Start with;
  with.arguments = {"run", "--", program};
  Program inside(with);
  const Said good = look(inside.pid());
  EXPECT_TRUE(has_one(findings_of(good), "OK libibverbs: ", "is NUPA's")) << good.out;
  EXPECT_EQ(good.status, 0);
  Start without;
  without.program = program;
  without.without = {"LD_LIBRARY_PATH", "LD_PRELOAD"};
  Program outside(without);
  const Said bad = look(outside.pid());
  EXPECT_TRUE(has_one(findings_of(bad), "NOTE process ", "not started by nupa run")) << bad.out;
  EXPECT_TRUE(has_one(findings_of(bad), "PROBLEM libibverbs: ", "is not NUPA's")) << bad.out;
  EXPECT_EQ(bad.status, 1);
}

TEST_F(CliDoctorProgram, Process_WithTwoLibrariesAndNonePreloaded_IsAProblem) {
  built("libibverbs-3f2a.so.1", "void* ibv_get_device_list(int* n) { return n; }", "-shared -fPIC");
  const std::string program =
      built("user", kUser,
            "-Wl,--no-as-needed " + (folder / "libibverbs-3f2a.so.1") + " -libverbs -Wl,-rpath," + (folder / ""));
  const std::string dropins =
      lines_of(run_nupa({"run", "--", "sh", "-c", "echo \"${LD_LIBRARY_PATH%%:*}\""}).out).at(0);
  Start start;
  start.program = program;
  start.environment = {{"LD_LIBRARY_PATH", dropins}};
  start.without = {"LD_PRELOAD"};
  Program both(start);
  Said said;
  ASSERT_TRUE(await([&] {
    said = run_nupa({"doctor", "--json", "--pid", std::to_string(both.pid())});
    return has(said.out, "two of them");
  })) << said.out;
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has_one(findings_of(said), "PROBLEM libibverbs: ", "two of them: ")) << said.out;
}

TEST_F(CliDoctorProgram, Process_ThatDoesNotExist_IsNamed) {
  const Said said = run_nupa({"doctor", "--json", "--pid", "2000000000"});
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has_one(findings_of(said), "PROBLEM process 2000000000: ", "there is none")) << said.out;
  EXPECT_EQ(run_nupa({"doctor", "--pid", "0"}).status, 2);
  EXPECT_EQ(run_nupa({"doctor", "--pid", "1", "--", "sh"}).status, 2);
}

}  // namespace
}  // namespace nupa::test
