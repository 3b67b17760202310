// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "cli/capture/output.h"
#include "cli/capture/sources.h"
#include "cli/commands.h"
#include "cli/definitions.h"
#include "cli/failure.h"
#include "cli/ranges.h"
#include "progress/deadline.h"
#include "progress/descriptors.h"

namespace nupa::cli {
namespace {

/// The time between two looks at the rings.
constexpr int64_t kTurnNs = 5 * base::kNsPerMs;
/// How long a packet waits for packets of other rings with earlier times.
constexpr int64_t kOrderNs = 20 * base::kNsPerMs;
/// How long the start waits for the processes that run.
constexpr int64_t kStartNs = 500 * base::kNsPerMs;
constexpr uint64_t kMostKept = 100'000'000;
constexpr uint32_t kLeastSnaplen = 62;  // the link headers of IPv6
constexpr uint32_t kMib = 1 << 20;
constexpr uint32_t kMostBufferMib = 1024;

struct CaptureOptions {
  Output::Options output;
  double seconds = 0;
  std::vector<int> pids;
  std::vector<std::string> qps;
  std::vector<std::string> devices;
  std::vector<std::string> transports;
  std::vector<std::string> classes;
  std::string direction;
  uint32_t buffer_mib = 8;
};

struct NamedClass {
  const char* name;
  uint32_t bit;
};
constexpr NamedClass kClasses[] = {
    {"send", capture::packet_class::kSend},   {"write", capture::packet_class::kWrite},
    {"read", capture::packet_class::kRead},   {"atomic", capture::packet_class::kAtomic},
    {"ack", capture::packet_class::kAck},     {"cm", capture::packet_class::kCm},
    {"other", capture::packet_class::kOther},
};

bool parse_qp(const std::string& text, uint32_t* qp) {
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  const char* const begin = text.data() + (is_hex ? 2 : 0);
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(begin, end, *qp, is_hex ? 16 : 10);
  return error == std::errc() && read == end && *qp <= 0xffffff;
}

capture::Filters filters_of(const CaptureOptions& options) {
  capture::Filters filters;
  filters.snaplen = options.output.snaplen;
  for (const std::string& wanted : options.classes)
    for (const NamedClass& each : kClasses)
      if (wanted == each.name) filters.classes |= each.bit;
  if (options.direction == "in") filters.directions = 1u << static_cast<uint32_t>(capture::Direction::kInbound);
  if (options.direction == "out") filters.directions = 1u << static_cast<uint32_t>(capture::Direction::kOutbound);
  for (const std::string& qp : options.qps) parse_qp(qp, &filters.qps[filters.qp_count++]);
  for (size_t i = 0; i < options.transports.size(); ++i)
    std::memcpy(&filters.transports[i], options.transports[i].data(),
                std::min(options.transports[i].size(), sizeof(uint64_t)));
  for (size_t i = 0; i < options.devices.size(); ++i)
    std::memcpy(filters.devices[i], options.devices[i].data(),
                std::min<size_t>(options.devices[i].size(), capture::kNameBytes - 1));
  return filters;
}

/// One run of the command.
class Capture {
 public:
  Capture(const CaptureOptions& options, Sources& sources, Output& output, int signals)
      : options_(options), sources_(sources), output_(output), signals_(signals) {}

  /// Returns the exit status.
  int run();

 private:
  enum class Signal : uint8_t { kNone, kEnd, kWrite };
  /// Waits for a signal, the end of a pipe's reader, processes or the deadline.
  void turn(int64_t until_ns);
  Signal take_signal();
  void collect(int64_t until_ns);
  int failed(const Error& error);

  const CaptureOptions& options_;
  Sources& sources_;
  Output& output_;
  const int signals_;
  PacketOrder order_;
  bool has_ended_ = false;
};

Capture::Signal Capture::take_signal() {
  signalfd_siginfo info;
  if (read(signals_, &info, sizeof info) != sizeof info) return Signal::kNone;
  return info.ssi_signo == SIGUSR1 ? Signal::kWrite : Signal::kEnd;
}

void Capture::turn(int64_t until_ns) {
  std::vector<pollfd> ready = sources_.descriptors();
  ready.push_back({signals_, POLLIN, 0});
  // A pipe without a reader is in error, whatever is asked for.
  ready.push_back({output_.is_pipe() ? output_.fd() : -1, 0, 0});
  [[maybe_unused]] const auto woken =
      progress::wait_descriptors(ready, progress::Deadline::at(until_ns), progress::Signals::kReturn);
  if (ready.back().revents != 0) has_ended_ = true;
  for (Signal signal = take_signal(); signal != Signal::kNone; signal = take_signal()) {
    if (signal == Signal::kEnd) has_ended_ = true;
    if (signal == Signal::kWrite) output_.write_kept();
  }
  sources_.look(ready.front().revents != 0);
  for (const int pid : sources_.take_refused())
    fmt::print(stderr, "nupa: capture: process {} cannot be captured (another version of NUPA?)\n", pid);
}

void Capture::collect(int64_t until_ns) {
  sources_.drain([&](CapturedPacket&& packet) { order_.add(std::move(packet)); });
  if (!output_.take(order_.take(until_ns))) has_ended_ = true;
  output_.add_dropped(sources_.take_dropped());
}

int Capture::failed(const Error& error) {
  // The reader of a pipe ends a capture like a signal.
  if (error.code() == EPIPE || error.code() == EINTR) return 0;
  return report_failure("capture", error.what());
}

int Capture::run() {
  const int64_t start_ns = base::now_ns();
  while (sources_.unanswered() != 0 && !has_ended_ && base::now_ns() - start_ns < kStartNs)
    turn(base::now_ns() + kTurnNs);
  fmt::print(stderr, "nupa: capturing {} process{}{}\n", sources_.captured(), sources_.captured() == 1 ? "" : "es",
             sources_.unanswered() == 0 ? "" : fmt::format(", {} do not answer", sources_.unanswered()));
  const int64_t end_ns =
      options_.seconds == 0 ? INT64_MAX : base::now_ns() + static_cast<int64_t>(options_.seconds * base::kNsPerSecond);
  while (!has_ended_ && base::now_ns() < end_ns) {
    const int64_t next_ns = base::now_ns() + kTurnNs;
    turn(std::min(next_ns, end_ns));
    collect(base::now_ns() - kOrderNs);
    if (const auto flushed = output_.flush(signals_); !flushed) return failed(flushed.error());
  }
  collect(INT64_MAX);
  output_.finish();
  const auto flushed = output_.flush(signals_);
  fmt::print(stderr, "nupa: {} packets captured, {} dropped\n", output_.taken(), output_.dropped());
  return flushed ? 0 : failed(flushed.error());
}

int run(const CaptureOptions& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  sigdelset(&signals, SIGPIPE);  // write() returns EPIPE
  const base::UniqueFd ended(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  auto dir = host::RuntimeDir::open();
  if (!dir) return report_failure("capture", dir.error().what());
  auto sources = Sources::open(
      **dir, {.pids = options.pids, .filters = filters_of(options), .ring_bytes = options.buffer_mib * kMib});
  if (!sources) return report_failure("capture", sources.error().what());
  auto output = Output::open(options.output);
  if (!output) return report_failure("capture", output.error().what());
  return Capture(options, **sources, *output, ended.get()).run();
}

CLI::Validator one_of(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return {[names, all](const std::string& value) {
            if (std::find(names.begin(), names.end(), value) != names.end()) return std::string();
            return fmt::format("'{}' is not accepted (expected one of {})", value, all);
          },
          choices_text(all, false)};
}

}  // namespace

Subcommand add_capture(CLI::App& app) {
  auto options = std::make_shared<CaptureOptions>();
  CLI::App* const command =
      app.add_subcommand("capture", "Write the packets of this user's processes to a pcapng file for Wireshark");
  command->add_option("-w,--write", options->output.path, "The file; -: standard output, for a pipe to tshark")
      ->required()
      ->type_name("FILE");
  command->add_option("-c,--count", options->output.count, "End after this number of packets")
      ->check(number_between(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  command->add_option("--duration", options->seconds, "End after this time, in seconds")
      ->check(number_between(0.01, kLongestSeconds, "seconds"));
  command
      ->add_option("--ring", options->output.ring,
                   "Keep the last packets, this number, in memory; write them at the end and at SIGUSR1")
      ->check(number_between(uint64_t{1}, kMostKept));
  command->add_option("--snaplen", options->output.snaplen, "Keep this number of bytes of each packet (default: all)")
      ->check(number_between(kLeastSnaplen, 65535u));
  command->add_option("--pid", options->pids, "Only the process with this number; may be repeated")
      ->check(number_between(1, std::numeric_limits<int>::max()));
  command->add_option("--qp", options->qps, "Only packets from or to this queue pair number; may be repeated")
      ->type_name("NUMBER")
      ->expected(1, static_cast<int>(capture::kMostQueuePairs))
      ->check(CLI::Validator(
          [](const std::string& text) {
            uint32_t qp = 0;
            return parse_qp(text, &qp)
                       ? std::string()
                       : fmt::format("'{}' is not accepted (expected a number from 0 to 0xffffff)", text);
          },
          ""));
  command->add_option("--device", options->devices, "Only packets of this device, such as nupa0; may be repeated")
      ->type_name("NAME")
      ->expected(1, static_cast<int>(capture::kMostDevices));
  command
      ->add_option("--transport", options->transports, "Only packets of this transport, such as shm; may be repeated")
      ->type_name("NAME")
      ->expected(1, static_cast<int>(capture::kMostTransports));
  std::vector<std::string> classes;
  for (const NamedClass& each : kClasses) classes.emplace_back(each.name);
  command->add_option("--class", options->classes, "Only packets of this class; may be repeated")
      ->expected(1, static_cast<int>(classes.size()))
      ->check(one_of(classes));
  command->add_option("--direction", options->direction, "Only packets that arrive (in) or leave (out)")
      ->check(one_of({"in", "out"}));
  command->add_option("--buffer", options->buffer_mib, "MiB of memory for each process; what finds no room is dropped")
      ->check(number_between(1u, kMostBufferMib))
      ->capture_default_str();
  command->footer(
      "The capture runs until SIGINT, SIGTERM or SIGHUP. Processes that start meanwhile are captured, too.\n"
      "At the end it prints how many packets were captured, and how many were dropped.");
  return {command, [options] { return run(*options); }};
}

}  // namespace nupa::cli
