// SPDX-License-Identifier: Apache-2.0
// Headers of datagrams, the rules for which sockets may become rsockets, and the peers known to use TCP only.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "rsockets/datagram_header.h"
#include "rsockets/preload/rules.h"
#include "../../support/held_allocation.h"

using namespace nupa::rsockets;

namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

/// While one lives, CLOCK_MONOTONIC of this thread stands still until it is moved.
class Clock {
 public:
  Clock() { now_ns = kNsPerSecond; }
  ~Clock() { now_ns = kOfTheSystem; }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// From its beginning.
  void move_to(int64_t ns) const { now_ns = kNsPerSecond + ns; }

  static constexpr int64_t kOfTheSystem = 0;
  static inline thread_local int64_t now_ns = kOfTheSystem;
};

}  // namespace

// The functions that are tested call this instead of libc's.
extern "C" __attribute__((visibility("default"))) int clock_gettime_of_test(clockid_t clock,
                                                                            timespec* time) __asm__("clock_gettime");
int clock_gettime_of_test(clockid_t clock, timespec* time) {
  const int64_t now = Clock::now_ns;
  if (clock != CLOCK_MONOTONIC || now == Clock::kOfTheSystem)
    return static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  *time = {now / kNsPerSecond, now % kNsPerSecond};
  return 0;
}

namespace {

sockaddr_storage ipv4(uint32_t address, uint16_t port) {
  sockaddr_storage storage{};
  auto& in = reinterpret_cast<sockaddr_in&>(storage);
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(address);
  in.sin_port = htons(port);
  return storage;
}

sockaddr_storage ipv6(uint8_t last, uint16_t port) {
  sockaddr_storage storage{};
  auto& in = reinterpret_cast<sockaddr_in6&>(storage);
  in.sin6_family = AF_INET6;
  in.sin6_addr.s6_addr[0] = 0xfd;
  in.sin6_addr.s6_addr[15] = last;
  in.sin6_port = htons(port);
  in.sin6_flowinfo = htonl(0x12345);
  return storage;
}

const sockaddr* plain(const sockaddr_storage& address) { return reinterpret_cast<const sockaddr*>(&address); }

std::array<std::byte, sizeof(DatagramHeader)> bytes_of(const DatagramHeader& header) {
  std::array<std::byte, sizeof(DatagramHeader)> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

/// What a function returns in a process of its own, whose environment has `value` for `name`.
template <class Call>
int in_process_with(const char* name, const std::string& value, Call call) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(name, value.c_str(), 1);
    _exit(call());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class ConfigFile {
 public:
  explicit ConfigFile(const char* text) {
    const int fd = mkstemp(name_.data());
    EXPECT_EQ(write(fd, text, std::strlen(text)), static_cast<ssize_t>(std::strlen(text)));
    close(fd);
  }
  ~ConfigFile() { unlink(name_.c_str()); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  const std::string& name() const { return name_; }

 private:
  std::string name_ = "/tmp/nupa_rules_XXXXXX";
};

/// One bit for IPv4, one for IPv6.
int allowed_families() {
  return (nupa::sockets::allowed(AF_INET) ? 1 : 0) | (nupa::sockets::allowed(AF_INET6) ? 2 : 0);
}
int allowed_by(const char* text) {
  const ConfigFile file(text);
  return in_process_with("NUPA_SOCKETS_CONFIG", file.name(), allowed_families);
}

}  // namespace

TEST(RsocketsDatagramHeader, HeaderOf_Address_ParsesToTheSameAddress) {
  for (const sockaddr_storage& address : {ipv4(0x7f000001, 4711), ipv6(9, 4712)}) {
    const DatagramHeader header = header_of(address);
    const auto bytes = bytes_of(header);
    sockaddr_storage back;
    uint32_t length = 0;
    ASSERT_TRUE(parse_header(bytes.data(), header.length, &back, &length));
    EXPECT_EQ(length, header.length);
    EXPECT_EQ(std::memcmp(&back, &address, sizeof back), 0);
  }
}

TEST(RsocketsDatagramHeader, ParseHeader_WrongVersionOrLength_Fails) {
  sockaddr_storage address;
  uint32_t length;
  for (const bool six : {false, true}) {
    const DatagramHeader good = header_of(six ? ipv6(9, 1) : ipv4(1, 1));
    EXPECT_EQ(good.version, six ? 6 : 4);
    EXPECT_EQ(good.length, six ? 24 : 8);
    EXPECT_FALSE(parse_header(bytes_of(good).data(), good.length - 1u, &address, &length)) << "not all of it is there";
    DatagramHeader wrong = good;
    wrong.length = six ? 8 : 24;
    EXPECT_FALSE(parse_header(bytes_of(wrong).data(), sizeof wrong, &address, &length));
    wrong = good;
    wrong.version = six ? 4 : 6;
    EXPECT_FALSE(parse_header(bytes_of(wrong).data(), sizeof wrong, &address, &length));
    wrong.version = 5;
    EXPECT_FALSE(parse_header(bytes_of(wrong).data(), sizeof wrong, &address, &length));
  }
}

TEST(RsocketsRules, KnownPlain_RememberedPortOrHost_IsTrueForItOnly) {
  using nupa::sockets::known_plain;
  using nupa::sockets::remember_plain;
  const Clock clock;  // no time passes
  const sockaddr_storage peer = ipv4(0xc0000201, 80), other_port = ipv4(0xc0000201, 81), other = ipv4(0xc0000202, 80);
  EXPECT_FALSE(known_plain(plain(peer)));
  remember_plain(plain(peer), false);
  EXPECT_TRUE(known_plain(plain(peer)));
  EXPECT_FALSE(known_plain(plain(other_port)));
  EXPECT_FALSE(known_plain(plain(other)));
  remember_plain(plain(other_port), true);
  const sockaddr_storage any_port = ipv4(0xc0000201, 9999);
  EXPECT_TRUE(known_plain(plain(any_port)));
  EXPECT_FALSE(known_plain(plain(other)));
  const sockaddr_storage six = ipv6(1, 80), six_other = ipv6(2, 80);
  remember_plain(plain(six), true);
  EXPECT_TRUE(known_plain(plain(six)));
  EXPECT_FALSE(known_plain(plain(six_other)));
}

TEST(RsocketsRules, KnownPlain_PortAfterASecondAndHostAfterAMinute_IsFalse) {
  using nupa::sockets::known_plain;
  using nupa::sockets::remember_plain;
  const sockaddr_storage port = ipv4(0xc0000301, 80), host = ipv4(0xc0000302, 80);
  const Clock clock;
  remember_plain(plain(port), false);
  remember_plain(plain(host), true);
  clock.move_to(kNsPerSecond - 1);
  EXPECT_TRUE(known_plain(plain(port)));
  clock.move_to(kNsPerSecond);
  EXPECT_FALSE(known_plain(plain(port)));
  clock.move_to(60 * kNsPerSecond - 1);
  EXPECT_TRUE(known_plain(plain(host)));
  clock.move_to(60 * kNsPerSecond);
  EXPECT_FALSE(known_plain(plain(host)));
}

TEST(RsocketsRules, Fork_WhileAThreadRemembersAPeer_TheChildKnowsNone) {
  const sockaddr_storage peer = ipv4(0xc0000401, 80), other = ipv4(0xc0000402, 80);
  nupa::sockets::remember_plain(plain(other), true);
  const nupa::test::HeldAllocation remembering([&] { nupa::sockets::remember_plain(plain(peer), true); });
  ASSERT_TRUE(remembering.stands());
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    nupa::sockets::forget_plain();
    _exit(nupa::sockets::known_plain(plain(peer)) || nupa::sockets::known_plain(plain(other)) ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RsocketsRules, Allowed_NoFile_IsTrueForInternetStreams) {
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_OTHER", "", allowed_families), 3);
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_OTHER", "", [] { return nupa::sockets::allowed(AF_UNIX) ? 1 : 0; }), 0);
}

TEST(RsocketsRules, Allowed_File_SelectsProgramDomainTypeAndProtocol) {
  const std::string self = program_invocation_short_name;
  EXPECT_EQ(allowed_by("* * * *\n"), 3);
  EXPECT_EQ(allowed_by("* inet stream tcp\n"), 1);
  EXPECT_EQ(allowed_by("* inet6 stream tcp\n"), 2);
  EXPECT_EQ(allowed_by((self + " inet stream tcp\nanother * * *\n").c_str()), 1);
  EXPECT_EQ(allowed_by("another * * *\n"), 0);
  EXPECT_EQ(allowed_by("* inet dgram udp\n"), 0);
  EXPECT_EQ(allowed_by("* inet stream udp\n"), 0);
  EXPECT_EQ(allowed_by("# * * * *\n"), 0);
  EXPECT_EQ(allowed_by("\n   \n* inet stream tcp # not IPv6\n"), 1);
  EXPECT_EQ(allowed_by("* inet stream tcp as librspreload ignores it\n"), 1);
  EXPECT_EQ(allowed_by("* inet stream tcp\n* inet6 stream\n"), 0) << "a word too few: all of it is an error";
  EXPECT_EQ(allowed_by(""), 0);
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONFIG", "/nonexistent", allowed_families), 0);
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONFIG", "", allowed_families), 3) << "as if it were not set";
}

TEST(RsocketsRules, ConnectMs_Setting_IsInMilliseconds) {
  const auto in_tenths = [] { return static_cast<int>(nupa::sockets::connect_ms() / 100); };
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONNECT_MS", "2500", in_tenths), 25);
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_OTHER", "", in_tenths), 10);
}

namespace {

/// The number of lines on standard error, or 100 if the settings are right.
int lines_of_two_calls() {
  ::testing::internal::CaptureStderr();
  const bool is_wrong = nupa::sockets::is_misconfigured() && nupa::sockets::is_misconfigured();
  const std::string text = ::testing::internal::GetCapturedStderr();
  return is_wrong ? static_cast<int>(std::count(text.begin(), text.end(), '\n')) : 100;
}
/// 1 if the message names line 2 of the file.
int names_line_2() {
  ::testing::internal::CaptureStderr();
  nupa::sockets::is_misconfigured();
  return ::testing::internal::GetCapturedStderr().find(": line 2 is not `program domain type protocol`") !=
                 std::string::npos
             ? 1
             : 0;
}

}  // namespace

TEST(RsocketsRules, WrongSetting_LineOfTheFile_IsNamed) {
  const std::string too_long(300, 'x');
  for (const std::string& wrong : {std::string("* inet stream"), std::string("*"), too_long + " * * *"}) {
    const ConfigFile file(("# comment\n" + wrong + "\n* * * *\n").c_str());
    EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONFIG", file.name(), names_line_2), 1) << wrong;
    EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONFIG", file.name(), lines_of_two_calls), 1) << wrong;
  }
}

TEST(RsocketsRules, WrongSetting_IsPrintedOnce) {
  for (const char* const value : {"0", "-3", "2500ms", "2147483648"})
    EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONNECT_MS", value, lines_of_two_calls), 1) << value;
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONFIG", "/nonexistent", lines_of_two_calls), 1);
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONFIG", "/", lines_of_two_calls), 1);
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_CONNECT_MS", "", lines_of_two_calls), 100);
  EXPECT_EQ(in_process_with("NUPA_SOCKETS_OTHER", "x", lines_of_two_calls), 100);
}
