// SPDX-License-Identifier: Apache-2.0
/// Measures a window of memory that two guests share, without the transport: whether each reads what the other one
/// wrote, the way of a cache line, and the bandwidth of the transport's ring. It overwrites the middle of the window:
/// run it before the pool is formatted.
///
///   window_probe WINDOW keeps
///   window_probe WINDOW SIDE NUMBER exchange
///   window_probe WINDOW SIDE NUMBER latency TURNS
///   window_probe WINDOW SIDE NUMBER ring RECORDS BYTES
///
/// WINDOW is resource2 of a PCI device, a dax device, or a file. Two guests run one command at the same time: SIDE is 0
/// or 1, and both have the same NUMBER, which no earlier command had.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "transport/pool/medium/line_ring.h"

namespace {

using nupa::pool::Coherent;
using nupa::pool::Header;
using nupa::pool::kLineBytes;
using nupa::pool::kLineWords;
using nupa::pool::Line;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kRingLines = 4096;
constexpr auto kPatience = std::chrono::seconds(60);

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "window_probe: %s\n", what.c_str());
  std::exit(1);
}

/// A moment between two looks. Without it, a guest whose window is emulated keeps the emulator's lock.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The area that the probe uses. Each line has one writer.
struct Area {
  Line meeting[2][2];  ///< of each side, by the round
  Line turns[2];
  Line credit;  ///< of side 1
  Line kept;
  Line ring[kRingLines];  ///< of side 0
};

uint64_t size_of(const std::string& path, int descriptor) {
  struct stat about = {};
  if (fstat(descriptor, &about) != 0) fail(path + ": " + std::strerror(errno));
  if (!S_ISCHR(about.st_mode)) return static_cast<uint64_t>(about.st_size);
  const std::string name =
      "/sys/dev/char/" + std::to_string(major(about.st_rdev)) + ":" + std::to_string(minor(about.st_rdev)) + "/size";
  uint64_t bytes = 0;
  if (!(std::ifstream(name) >> bytes)) fail(name + ": cannot be read");
  return bytes;
}

Area* map(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail(path + ": " + std::strerror(errno));
  const uint64_t bytes = size_of(path, descriptor);
  if (bytes / 2 < sizeof(Area)) fail(path + ": " + std::to_string(bytes) + " bytes are too few");
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) fail(path + ": mmap: " + std::strerror(errno));
  return reinterpret_cast<Area*>(static_cast<std::byte*>(at) + bytes / 2 / kLineBytes * kLineBytes);
}

/// Waits for a condition. Looks at the clock now and then only.
template <class Condition>
void wait(Condition condition) {
  const auto end = Clock::now() + kPatience;
  for (uint32_t turn = 1; !condition(); ++turn) {
    pause();
    if (turn % 65536 == 0 && Clock::now() > end)
      fail("the other guest does not answer: it does not run, or the window is not shared");
  }
}

/// Content that only this side with this number writes.
Line content_of(int side, uint64_t number) {
  Line line;
  for (size_t word = 0; word < kLineWords; ++word)
    line.words[word] = (number << 8 | word) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(side);
  return line;
}

/// Returns when both sides are here, and this one has read the whole line of the other one.
void meet(Area* area, int side, uint64_t number, int round = 0) {
  Coherent::publish(&area->meeting[side][round], content_of(side, number));
  const Line wanted = content_of(1 - side, number);
  const Line* const theirs = &area->meeting[1 - side][round];
  wait([&] { return Coherent::poll(theirs) == wanted.words[0]; });
  const Line read = Coherent::read(theirs);
  if (std::memcmp(&read, &wanted, sizeof read) != 0) fail("the line of the other guest is damaged");
}

void check_keeps(Area* area) {
  volatile uint64_t* const word = &area->kept.words[0];
  const uint64_t before = *word, wanted = ~before ^ static_cast<uint64_t>(getpid());
  *word = wanted;
  const uint64_t after = *word;
  *word = before;
  if (after != wanted) fail("the window loses what is written to it");
  std::puts("the window keeps what is written to it");
}

void latency(Area* area, int side, uint64_t number, uint64_t turns) {
  area->turns[side].words[0] = 0;
  meet(area, side, number);
  constexpr uint64_t kWarm = 50;
  auto began = Clock::now(), last = began;
  Clock::duration longest{};
  for (uint64_t turn = 1; turn <= turns + kWarm; ++turn) {
    Line line;
    line.words[0] = turn;
    const auto arrived = [&] { return Coherent::poll(&area->turns[1 - side]) == turn; };
    if (side == 1) wait(arrived);
    Coherent::publish(&area->turns[side], line);
    if (side == 0) wait(arrived);
    const auto now = Clock::now();
    if (turn == kWarm) {
      began = now;
    } else if (turn > kWarm) {
      longest = std::max(longest, now - last);
    }
    last = now;
  }
  const std::chrono::duration<double, std::micro> mean = (last - began) / (2.0 * static_cast<double>(turns)),
                                                  worst = longest;
  std::printf("one way %.3f us, longest turn %.0f us\n", mean.count(), worst.count());
}

void stream(Area* area, int side, uint64_t number, uint64_t records, uint64_t bytes) {
  const uint64_t payload_lines = nupa::pool::lines_of(bytes);
  if (payload_lines >= nupa::pool::ring::longest_record(kRingLines)) fail("a record is too long");
  // A ring begins with lines of zeros.
  if (side == 0) std::memset(static_cast<void*>(area->ring), 0, sizeof area->ring);
  if (side == 1) area->credit = {};
  meet(area, side, number);
  std::vector<std::byte> payload(payload_lines * kLineBytes);
  const auto began = Clock::now();
  Header header;
  if (side == 0) {
    nupa::pool::RingWriter<Coherent> writer({}, area->ring, kRingLines, &area->credit);
    for (uint64_t record = 0; record < records; ++record) {
      std::memset(payload.data(), static_cast<int>(record % 251), kLineBytes);
      header.payload_lines = static_cast<uint16_t>(payload_lines);
      wait([&] { return writer.fits(header.payload_lines); });
      writer.store(0, payload.data(), payload.size());
      writer.publish(header);
    }
  } else {
    nupa::pool::RingReader<Coherent> reader({}, area->ring, kRingLines, &area->credit);
    using Look = nupa::pool::RingReader<Coherent>::Look;
    for (uint64_t record = 0; record < records; ++record) {
      Look look = Look::kNothing;
      wait([&] { return (look = reader.look(&header)) != Look::kNothing; });
      if (look == Look::kGarbage || header.payload_lines != payload_lines) fail("a record is damaged");
      reader.load(0, payload.data(), payload.size());
      if (payload_lines > 0 && payload[0] != static_cast<std::byte>(record % 251))
        fail("the payload of a record is damaged");
      reader.pop();
    }
    reader.report();
  }
  meet(area, side, number, 1);
  const std::chrono::duration<double> took = Clock::now() - began;
  std::printf("%.1f MB/s, %.2f us a record\n", static_cast<double>(records * bytes) / took.count() / 1e6,
              took.count() * 1e6 / static_cast<double>(records));
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> all(words + 1, words + count);
  const auto number_at = [&](size_t at) { return std::strtoull(all[at].c_str(), nullptr, 10); };
  if (all.size() == 2 && all[1] == "keeps") {
    check_keeps(map(all[0]));
    return 0;
  }
  if (all.size() >= 4 && (all[1] == "0" || all[1] == "1")) {
    const int side = all[1] == "1";
    Area* const area = map(all[0]);
    const uint64_t number = number_at(2);
    if (all[3] == "exchange" && all.size() == 4) {
      meet(area, side, number);
      std::puts("each guest reads what the other one wrote");
      return 0;
    }
    if (all[3] == "latency" && all.size() == 5) {
      latency(area, side, number, number_at(4));
      return 0;
    }
    if (all[3] == "ring" && all.size() == 6) {
      stream(area, side, number, number_at(4), number_at(5));
      return 0;
    }
  }
  std::fprintf(stderr,
               "usage: window_probe WINDOW keeps | WINDOW SIDE NUMBER exchange | latency TURNS | ring RECORDS BYTES\n");
  return 2;
}
