// SPDX-License-Identifier: Apache-2.0
/// What UDP sockets give without anything on top, for comparison: a stream of segmented sends (UDP_SEGMENT, UDP_GRO),
/// or datagrams to and fro: by non-blocking calls (pingpong), by the same with a yield after each that found nothing
/// (yielding), or by calls that sleep until one comes (blocking).
///
///   raw_udp stream|pingpong|yielding|blocking PORT BYTES SECONDS [SERVER]
///
/// Without SERVER it waits for the other one: it says on TCP port PORT that it is there. The stream's server prints
/// GB/s, the ping-pong's client half of the round trip in us, median and 99th percentile.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kUdpSegment = 103;
constexpr int kUdpGro = 104;
constexpr int kBufferBytes = 4 << 20;
constexpr size_t kMostBytes = 65000;
constexpr int kSilenceMs = 2000;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(1);
}

int open_socket(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  const int one = 1;
  for (const int option : {SO_RCVBUFFORCE, SO_SNDBUFFORCE})
    setsockopt(fd, SOL_SOCKET, option, &kBufferBytes, sizeof(int));
  constexpr timeval kSilence{kSilenceMs / 1000, 0};  // of calls that sleep
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kSilence, sizeof kSilence);
  setsockopt(fd, IPPROTO_UDP, kUdpGro, &one, sizeof one);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) give_up("UDP port");
  return fd;
}

/// Whoever starts the client looks for this socket.
int say_ready(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 || listen(fd, 1) != 0) give_up("TCP port");
  return fd;
}

void receive_stream(int fd, double seconds) {
  std::vector<char> buffer(65536);
  double begun = 0, last = 0;
  uint64_t bytes = 0;
  pollfd ready{fd, POLLIN, 0};
  while (poll(&ready, 1, kSilenceMs) > 0) {
    ssize_t got;
    while ((got = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0) {
      last = now_s();
      if (begun == 0) begun = last;
      if (last - begun < seconds) bytes += static_cast<uint64_t>(got);
    }
  }
  if (begun == 0) give_up("nothing came");
  std::printf("%.4f\n", static_cast<double>(bytes) / 1e9 / std::min(seconds, last - begun));
}

void send_stream(int fd, size_t segment, double seconds) {
  const int size = static_cast<int>(segment);
  if (setsockopt(fd, IPPROTO_UDP, kUdpSegment, &size, sizeof size) != 0) give_up("UDP_SEGMENT");
  const std::vector<char> data(kMostBytes / segment * segment);
  for (const double until = now_s() + seconds; now_s() < until;)
    for (int i = 0; i < 16; ++i) send(fd, data.data(), data.size(), 0);
}

/// How to wait for a datagram.
struct Wait {
  int flags;  ///< of the call
  bool yields;
  void turn() const {
    if (yields) sched_yield();
  }
};

void echo(int fd, Wait wait) {
  std::vector<char> buffer(65536);
  double last = now_s();
  while (now_s() - last < kSilenceMs / 1e3) {
    sockaddr_in from{};
    socklen_t length = sizeof from;
    const ssize_t got =
        recvfrom(fd, buffer.data(), buffer.size(), wait.flags, reinterpret_cast<sockaddr*>(&from), &length);
    if (got <= 0) {
      wait.turn();
      continue;
    }
    if (got == 1) return;
    sendto(fd, buffer.data(), static_cast<size_t>(got), 0, reinterpret_cast<sockaddr*>(&from), length);
    last = now_s();
  }
}

void ping(int fd, size_t bytes, double seconds, Wait wait) {
  std::vector<char> buffer(65536);
  std::vector<double> halves;
  for (const double until = now_s() + seconds; now_s() < until;) {
    const double begun = now_s();
    send(fd, buffer.data(), bytes, 0);
    while (recv(fd, buffer.data(), buffer.size(), wait.flags) <= 0) {
      if (now_s() - begun > 1) give_up("no answer");
      wait.turn();
    }
    halves.push_back((now_s() - begun) / 2);
  }
  send(fd, buffer.data(), 1, 0);
  std::sort(halves.begin(), halves.end());
  std::printf("%.4f %.4f\n", halves[halves.size() / 2] * 1e6, halves[halves.size() * 99 / 100] * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: raw_udp stream|pingpong|yielding|blocking PORT BYTES SECONDS [SERVER]\n");
    return 2;
  }
  const bool stream = std::strcmp(argv[1], "stream") == 0;
  const Wait wait{std::strcmp(argv[1], "blocking") == 0 ? 0 : MSG_DONTWAIT, std::strcmp(argv[1], "yielding") == 0};
  const auto port = static_cast<uint16_t>(std::atoi(argv[2]));
  const auto bytes = static_cast<size_t>(std::atoi(argv[3]));
  const double seconds = std::atof(argv[4]);
  if (argc == 5) {
    const int fd = open_socket(port);
    say_ready(port);
    if (stream)
      receive_stream(fd, seconds);
    else
      echo(fd, wait);
    return 0;
  }
  const int fd = open_socket(0);
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_port = htons(port);
  if (inet_pton(AF_INET, argv[5], &server.sin_addr) != 1 ||
      connect(fd, reinterpret_cast<sockaddr*>(&server), sizeof server) != 0)
    give_up(argv[5]);
  if (stream)
    send_stream(fd, bytes, seconds);
  else
    ping(fd, bytes, seconds, wait);
  return 0;
}
