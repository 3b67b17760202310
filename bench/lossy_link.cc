// SPDX-License-Identifier: Apache-2.0
/// A link between two network namespaces that delays packets, loses some at random and has a rate and a queue, for
/// kernels without netem.
///
///   lossy_link NAMESPACE NAMESPACE MBIT_PER_S DELAY_US QUEUE_BYTES LOSS SEED
///
/// Both namespaces get a TUN device `wire`, up to the caller to configure. It takes no segmentation offload, so the
/// kernel hands over single packets, each of which takes part in the lottery; LOSS is a chance from 0 to 1, each way.
/// Says "ready", ends when its input is closed, and prints then what happened, as JSON.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/sim/simulated_link.h"

namespace {

using nupa::sim::LinkOptions;
using nupa::sim::SimulatedLink;

constexpr size_t kMostBytes = 65536;
/// Read in one go from one end, so that what is due on the other is not late.
constexpr int kBatch = 16;
constexpr int64_t kSecond = 1'000'000'000;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

[[noreturn]] void give_up(const std::string& what) {
  std::perror(("lossy_link: " + what).c_str());
  std::exit(1);
}

/// The file of a TUN device in the namespace, which the calling thread is in from then on.
int open_end(const std::string& name) {
  const int space = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) give_up("namespace " + name);
  close(space);
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) give_up("/dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "wire");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(fd, TUNSETIFF, &request) != 0) give_up("TUN device");
  return fd;
}

/// Programs that spin would else keep it waiting for milliseconds.
void run_before_others() {
  const sched_param priority{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0) std::perror("lossy_link: SCHED_FIFO");
  if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) std::perror("lossy_link: mlockall");
}

/// One way of the link.
struct Way {
  int from;
  int to;
  uint64_t queue_bytes;
  SimulatedLink link;
  uint64_t packets = 0;
  uint64_t bytes = 0;
  uint64_t queue_drops = 0;
  uint64_t undelivered = 0;
  uint64_t largest = 0;
  uint64_t largest_queue = 0;
  int64_t latest_ns = 0;  ///< how late a packet was handed over at most

  void take_in() {
    std::array<std::byte, kMostBytes> buffer;
    for (int i = 0; i < kBatch; ++i) {
      const ssize_t got = read(from, buffer.data(), buffer.size());
      if (got <= 0) return;
      const int64_t now = now_ns();
      const auto length = static_cast<uint64_t>(got);
      ++packets;
      bytes += length;
      largest = std::max(largest, length);
      const uint64_t waiting = link.queued(now);
      largest_queue = std::max(largest_queue, waiting);
      if (waiting > queue_bytes) ++queue_drops;
      link.send(now, std::vector<std::byte>(buffer.data(), buffer.data() + length));
    }
  }
  void hand_over() {
    for (int64_t now = now_ns(); link.next_arrival() <= now;) {
      const SimulatedLink::Arrival arrival = link.take();
      latest_ns = std::max(latest_ns, now - arrival.when);
      if (write(to, arrival.bytes.data(), arrival.bytes.size()) < 0) ++undelivered;
    }
  }
  std::string json() const {
    const uint64_t at_random = link.lost() - queue_drops;
    std::array<char, 320> text;
    std::snprintf(text.data(), text.size(),
                  "{\"packets\": %llu, \"bytes\": %llu, \"lost\": %llu, \"queue_drops\": %llu, \"undelivered\": %llu, "
                  "\"largest_packet\": %llu, \"largest_queue\": %llu, \"latest_us\": %.1f}",
                  1ull * packets, 1ull * bytes, 1ull * at_random, 1ull * queue_drops, 1ull * undelivered,
                  1ull * largest, 1ull * largest_queue, static_cast<double>(latest_ns) / 1e3);
    return text.data();
  }
};

void forward(std::array<Way, 2>& provider) {
  std::array<pollfd, 3> files{
      {{provider[0].from, POLLIN, 0}, {provider[1].from, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
  while (files[2].revents == 0) {
    const int64_t next = std::min(provider[0].link.next_arrival(), provider[1].link.next_arrival());
    const int64_t left = std::clamp<int64_t>(next - now_ns(), 0, kSecond);
    const timespec wait{left / kSecond, left % kSecond};
    if (ppoll(files.data(), files.size(), &wait, nullptr) < 0 && errno != EINTR) give_up("ppoll");
    for (Way& way : provider) {
      way.take_in();
      way.hand_over();
    }
  }
}

double processor_seconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: lossy_link NAMESPACE NAMESPACE MBIT_PER_S DELAY_US QUEUE_BYTES LOSS SEED\n");
    return 2;
  }
  LinkOptions options;
  options.rate = static_cast<uint64_t>(std::atof(argv[3]) * 1e6 / 8);
  options.delay_ns = static_cast<int64_t>(std::atof(argv[4]) * 1e3);
  options.queue_bytes = std::strtoull(argv[5], nullptr, 0);
  options.faults.loss = std::atof(argv[6]);
  const uint64_t seed = std::strtoull(argv[7], nullptr, 0);
  const int here = open_end(argv[1]);
  const int there = open_end(argv[2]);
  std::array<Way, 2> provider{{{here, there, options.queue_bytes, SimulatedLink(options, seed * 2)},
                               {there, here, options.queue_bytes, SimulatedLink(options, seed * 2 + 1)}}};
  run_before_others();
  std::puts("ready");
  std::fflush(stdout);
  const int64_t begun = now_ns();
  forward(provider);
  const double seconds = static_cast<double>(now_ns() - begun) / 1e9;
  std::printf("{\"seconds\": %.3f, \"processor_seconds\": %.3f, \"provider\": [%s, %s]}\n", seconds,
              processor_seconds(), provider[0].json().c_str(), provider[1].json().c_str());
  return 0;
}
