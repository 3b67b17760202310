// SPDX-License-Identifier: Apache-2.0
#include "cli/capture/sources.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/shared_file.h"
#include "base/system_error.h"
#include "host/wire.h"

namespace nupa::cli {
namespace {

/// A process refuses while it still has an earlier capture, whose end it has not seen.
constexpr uint32_t kMostTries = 100;
constexpr int64_t kTryPauseNs = 10 * base::kNsPerMs;

/// The characters that a comment may show: another process has written the text.
std::string printable(std::string_view text) {
  std::string shown;
  for (const char character : text.substr(0, text.find('\0')))
    shown += character >= ' ' && character <= '~' ? character : '?';
  return shown;
}

std::string transport_in(const capture::RingHeader& header, uint32_t transport) {
  const uint64_t word = header.transports[transport].load(std::memory_order_relaxed);
  char name[sizeof word];
  std::memcpy(name, &word, sizeof word);
  return word == 0 ? "unknown" : printable({name, sizeof name});
}

std::string device_in(const capture::RingHeader& header, uint32_t device) {
  std::string name = printable({header.devices[device], sizeof header.devices[device]});
  return name.empty() ? fmt::format("device{}", device) : name;
}

}  // namespace

Sources::Process::~Process() {
  if (mapping != nullptr) munmap(mapping, capture::Ring::file_bytes(ring.capacity()));
}

Result<std::unique_ptr<Sources>> Sources::open(host::RuntimeDir& dir, const Options& options) {
  std::unique_ptr<Sources> sources(new Sources(dir, options));
  if (auto started = sources->start(); !started) return tl::unexpected(started.error());
  return sources;
}

Sources::~Sources() {
  dir_.let_go(host::RuntimeDir::kCaptureOfAllKey);
  dir_.let_go(host::RuntimeDir::kCaptureKey);
}

Result<void> Sources::start() {
  if (auto held = dir_.hold(host::RuntimeDir::kCaptureKey, true); !held) {
    if (held.error().code() != EEXIST) return held;
    return fail(EEXIST, "another nupa capture runs in ", dir_.path());
  }
  folder_.reset(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!folder_ || inotify_add_watch(folder_.get(), dir_.path().c_str(), IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) < 0)
    return base::fail_call(errno, "cannot watch the runtime directory ", dir_.path());
  // A process that starts waits for its capture only if it gets one.
  if (options_.pids.empty())
    if (auto held = dir_.hold(host::RuntimeDir::kCaptureOfAllKey, false); !held) return held;
  find_processes();
  return {};
}

bool Sources::wants(int pid) const {
  return options_.pids.empty() || std::find(options_.pids.begin(), options_.pids.end(), pid) != options_.pids.end();
}

std::vector<pollfd> Sources::descriptors() const {
  std::vector<pollfd> all{{folder_.get(), POLLIN, 0}};
  for (const Process& process : processes_)
    if (process.socket) all.push_back({process.socket.get(), POLLIN, 0});
  return all;
}

uint32_t Sources::unanswered() const {
  return static_cast<uint32_t>(
      std::count_if(processes_.begin(), processes_.end(), [](const Process& process) { return !process.is_captured; }));
}

void Sources::find_processes() {
  looks_again_ = false;
  for (const uint32_t slot : dir_.processes()) {
    const auto id = dir_.socket_id(slot);
    if (!id) continue;
    const auto is_it = [&](const Process& process) { return process.id == *id; };
    if (std::any_of(processes_.begin(), processes_.end(), is_it)) continue;
    if (const auto ignored = ignored_.find(slot); ignored != ignored_.end() && ignored->second == *id) continue;
    Process& process = processes_.emplace_back();
    process.slot = slot;
    process.id = *id;
    ask(process);
    if (!process.has_ended) continue;
    // It does not listen yet, or has died.
    processes_.pop_back();
    looks_again_ = true;
  }
}

/// Sends the process a ring. Process::has_ended: it was not reached.
void Sources::ask(Process& process) {
  process.next_try_ns = 0;
  process.has_ended = true;
  ++process.tries;
  auto connection = dir_.connect(process.slot);
  if (!connection) return;
  const auto credentials = host::peer_credentials(connection->get());
  if (!credentials) return;
  process.pid = credentials->pid;
  if (!wants(process.pid)) {
    ignored_.insert_or_assign(process.slot, process.id);
    return;
  }
  if (process.mapping != nullptr) munmap(process.mapping, capture::Ring::file_bytes(options_.ring_bytes));
  process.mapping = nullptr;
  auto file = base::make_shared_file("nupa-capture");
  if (!file) return;
  const uint64_t bytes = capture::Ring::file_bytes(options_.ring_bytes);
  // The memory is taken now: a process that finds none later would get a signal.
  if (!base::grow_shared_file(file->get(), bytes) || fallocate(file->get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (at == MAP_FAILED) return;
  process.mapping = at;
  process.ring = capture::Ring(at, options_.ring_bytes);
  capture::RingHeader& header = process.ring.header();
  header.magic = capture::kRingMagic;
  header.version = capture::kRingVersion;
  header.capacity = options_.ring_bytes;
  header.filters = options_.filters;
  host::Message question{};
  question.magic = host::kWireMagic;
  question.version = host::kWireVersion;
  question.kind = static_cast<uint32_t>(host::MessageKind::kCapture);
  const int descriptor = file->get();
  if (!host::send_message(connection->get(), question, &descriptor, 1)) return;
  process.socket = std::move(*connection);
  process.has_ended = false;
}

void Sources::take_answer(Process& process) {
  for (;;) {
    const auto received = host::receive_message(process.socket.get());
    if (!received && received.error().code() == EAGAIN) return;
    if (received && received->message.kind == static_cast<uint32_t>(host::MessageKind::kCaptured)) {
      if (process.is_captured) continue;
      process.is_captured = true;
      process.program = std::make_shared<const std::string>(
          printable({process.ring.header().program, sizeof process.ring.header().program}));
      ++captured_;
      continue;
    }
    process.socket.reset();
    if (process.is_captured || process.tries >= kMostTries)
      process.has_ended = true;
    else
      process.next_try_ns = base::now_ns() + kTryPauseNs;
    return;
  }
}

void Sources::look(bool folder_changed) {
  if (folder_changed) {
    alignas(inotify_event) char events[4096];
    while (read(folder_.get(), events, sizeof events) > 0) {
    }
  }
  if (folder_changed || looks_again_) find_processes();
  const int64_t now = base::now_ns();
  for (Process& process : processes_) {
    if (process.socket) take_answer(process);
    if (process.next_try_ns != 0 && process.next_try_ns <= now) ask(process);
  }
}

void Sources::drain(Process& process, const std::function<void(CapturedPacket&&)>& take) {
  // At most a ring in a turn, so that the others have theirs.
  uint64_t left = process.ring.capacity();
  capture::Record record;
  for (;;) {
    const capture::Ring::Next next = process.ring.next(&record);
    if (next == capture::Ring::Next::kBroken) {
      process.lost = 1;
      process.socket.reset();
      process.has_ended = true;
    }
    if (next != capture::Ring::Next::kRecord) return;
    CapturedPacket packet;
    packet.record = record;
    packet.bytes.assign(record.bytes.begin(), record.bytes.end());
    packet.record.bytes = {};
    packet.pid = process.pid;
    packet.program = process.program;
    packet.device = device_in(process.ring.header(), record.device);
    packet.transport = transport_in(process.ring.header(), record.transport);
    process.ring.drop(record);
    take(std::move(packet));
    if (left <= record.size) return;
    left -= record.size;
  }
}

void Sources::drain(const std::function<void(CapturedPacket&&)>& take) {
  for (auto process = processes_.begin(); process != processes_.end();) {
    const bool had_ended = process->has_ended;
    if (process->is_captured) drain(*process, take);
    if (!had_ended) {
      ++process;
      continue;
    }
    if (process->is_captured) {
      // The producer is dead: a record that is not complete never will be.
      if (process->ring.has_unfinished()) process->lost = 1;
      add_dropped(*process, &dropped_);
    } else if (process->tries >= kMostTries) {
      refused_.push_back(process->pid);
    }
    ignored_.insert_or_assign(process->slot, process->id);
    process = processes_.erase(process);
  }
}

void Sources::add_dropped(Process& process, std::vector<DroppedPackets>* all) {
  capture::RingHeader& header = process.ring.header();
  for (uint32_t device = 0; device < capture::kMostDevices; ++device)
    for (uint32_t transport = 0; transport < capture::kMostTransports; ++transport) {
      const uint64_t now = header.dropped[device][transport].load(std::memory_order_relaxed);
      const uint64_t more = now - process.dropped[device][transport];
      process.dropped[device][transport] = now;
      if (more != 0) all->push_back({device_in(header, device), transport_in(header, transport), more});
    }
  if (process.lost != 0)
    all->push_back({device_in(header, 0), transport_in(header, 0), std::exchange(process.lost, 0)});
}

std::vector<DroppedPackets> Sources::take_dropped() {
  std::vector<DroppedPackets> all = std::exchange(dropped_, {});
  for (Process& process : processes_)
    if (process.is_captured) add_dropped(process, &all);
  return all;
}

}  // namespace nupa::cli
