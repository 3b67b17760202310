// SPDX-License-Identifier: Apache-2.0
// Costs of the ring of the pool transport alone, between two threads on two cores: the time of an 8-byte record from
// one core to the other, and the bandwidth of records of 64 KiB. The ring is measured on coherent memory twice: by the
// policy for coherent memory, and by the one that writes lines back and invalidates them. The caches of one machine are
// coherent, so the instructions are executed as between hosts, and only the way to the memory is shorter.
//   pool_ring [--cores A,B] [--quick]
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "transport/pool/medium/cpu.h"
#include "transport/pool/medium/line_ring.h"

namespace {

using nupa::pool::CachePolicy;
using nupa::pool::Coherent;
using nupa::pool::Flushed;
using nupa::pool::HardwareCpu;
using nupa::pool::Header;
using nupa::pool::kLineBytes;
using nupa::pool::Line;
using nupa::pool::RingReader;
using nupa::pool::RingWriter;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kRingLines = 4096;
constexpr size_t kRecordBytes = 48 << 10;  // a record must be shorter than a quarter of the ring
constexpr size_t kMessageBytes = 1 << 20;
constexpr int kBlock = 200;

struct Options {
  int cores[2] = {0, 1};
  bool quick = false;
};

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Two rings in shared memory, and the credit line of each.
struct Rings {
  Rings() {
    const size_t bytes = (2 * size_t{kRingLines} + 2) * kLineBytes;
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    lines = mapped == MAP_FAILED ? nullptr : static_cast<Line*>(mapped);
  }
  Line* ring(int number) const { return lines + number * size_t{kRingLines}; }
  Line* credit(int number) const { return lines + 2 * size_t{kRingLines} + number; }
  Line* lines;
};

/// Yields now and then, because the threads may share a core with other programs.
class Pause {
 public:
  void operator()() {
    constexpr int kSpins = 2000;
    if (++spins_ % kSpins == 0) sched_yield();
  }

 private:
  int spins_ = 0;
};

template <CachePolicy Policy>
struct Side {
  Side(const Rings& rings, int out, int in)
      : writer(Policy(), rings.ring(out), kRingLines, rings.credit(out)),
        reader(Policy(), rings.ring(in), kRingLines, rings.credit(in)) {}

  void send() {
    Pause pause;
    while (!writer.fits(0)) pause();
    writer.publish(Header{});
  }
  void receive() {
    Pause pause;
    Header header;
    while (reader.look(&header) != RingReader<Policy>::Look::kRecord) pause();
    reader.pop();
  }

  RingWriter<Policy> writer;
  RingReader<Policy> reader;
};

template <CachePolicy Policy>
double one_way_ns(const Options& options) {
  const Rings rings;
  if (rings.lines == nullptr) return 0;
  const int blocks = options.quick ? 100 : 500;
  std::thread peer([&] {
    pin(options.cores[1]);
    Side<Policy> side(rings, 1, 0);
    for (int turn = 0; turn < blocks * kBlock; ++turn) {
      side.receive();
      side.send();
    }
  });
  pin(options.cores[0]);
  Side<Policy> side(rings, 0, 1);
  std::vector<double> samples;
  for (int block = 0; block < blocks; ++block) {
    const auto start = Clock::now();
    for (int turn = 0; turn < kBlock; ++turn) {
      side.send();
      side.receive();
    }
    samples.push_back(ns_since(start) / (2.0 * kBlock));
  }
  peer.join();
  return median(samples);
}

/// Returns 10^9 bytes a second of messages of 1 MiB, which are cut into records.
template <CachePolicy Policy>
double bandwidth(const Options& options) {
  const Rings rings;
  if (rings.lines == nullptr) return 0;
  const size_t messages = options.quick ? 100 : 500;
  const std::vector<std::byte> from(kMessageBytes, std::byte{1});
  std::vector<std::byte> to(kMessageBytes);
  std::atomic<bool> ready{false};
  std::thread peer([&] {
    pin(options.cores[1]);
    RingWriter<Policy> writer(Policy(), rings.ring(0), kRingLines, rings.credit(0));
    Pause pause;
    while (!ready) pause();
    for (size_t message = 0; message < messages; ++message)
      for (size_t at = 0; at < kMessageBytes; at += kRecordBytes) {
        const size_t bytes = std::min(kRecordBytes, kMessageBytes - at);
        Header header;
        header.payload_lines = static_cast<uint16_t>(nupa::pool::lines_of(bytes));
        while (!writer.fits(header.payload_lines)) pause();
        writer.store(0, from.data() + at, bytes);
        writer.publish(header);
      }
  });
  pin(options.cores[0]);
  RingReader<Policy> reader(Policy(), rings.ring(0), kRingLines, rings.credit(0));
  const auto start = Clock::now();
  ready = true;
  Pause pause;
  for (size_t message = 0; message < messages; ++message)
    for (size_t at = 0; at < kMessageBytes; at += kRecordBytes) {
      Header header;
      while (reader.look(&header) != RingReader<Policy>::Look::kRecord) pause();
      reader.load(0, to.data() + at, std::min(kRecordBytes, kMessageBytes - at));
      reader.pop();
    }
  const double rate = static_cast<double>(messages * kMessageBytes) / ns_since(start);
  peer.join();
  return rate;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick")
      options.quick = true;
    else if (name != "--cores" || i + 1 == argc ||
             sscanf(argv[++i], "%d,%d", &options.cores[0], &options.cores[1]) != 2)
      return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fprintf(stderr, "usage: pool_ring [--cores A,B] [--quick]\n");
    return 2;
  }
  printf("{\"coherent_ns\": %.2f, \"flushed_ns\": %.2f, ", one_way_ns<Coherent>(options),
         one_way_ns<Flushed<HardwareCpu>>(options));
  printf("\"coherent_bw\": %.4f, \"flushed_bw\": %.4f, \"instructions\": \"%s\"}\n", bandwidth<Coherent>(options),
         bandwidth<Flushed<HardwareCpu>>(options), nupa::pool::name_of(nupa::pool::line_instructions()));
  return 0;
}
