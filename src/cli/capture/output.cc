// SPDX-License-Identifier: Apache-2.0
#include "cli/capture/output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/clock.h"
#include "base/system_error.h"
#include "capture/file/frame.h"
#include "nupa_config.h"
#include "progress/descriptors.h"

namespace nupa::cli {
namespace {

using capture::PcapngWriter;

constexpr mode_t kOwnerOnly = 0600;  // packets hold the program's data
constexpr uint16_t kRocePort = 4791;

std::string comment_of(const CapturedPacket& packet, capture::Crc crc) {
  std::string text = fmt::format("pid {} ({}), {}", packet.pid, *packet.program, packet.transport);
  if ((packet.record.flags & capture::frame_flag::kSynthetic) != 0) text += ", synthetic";
  if (packet.record.udp_port != kRocePort) text += fmt::format(", to UDP port {}", packet.record.udp_port);
  if (crc == capture::Crc::kOmitted) text += ", without ICRC";
  if (crc == capture::Crc::kWrong) text += ", wrong ICRC";
  return text;
}

}  // namespace

std::vector<CapturedPacket> PacketOrder::take(int64_t until_ns) {
  std::stable_sort(waiting_.begin(), waiting_.end(), [](const CapturedPacket& a, const CapturedPacket& b) {
    return a.record.time_ns < b.record.time_ns;
  });
  const auto end = std::find_if(waiting_.begin(), waiting_.end(),
                                [&](const CapturedPacket& packet) { return packet.record.time_ns >= until_ns; });
  std::vector<CapturedPacket> taken(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return taken;
}

Output::Output(const Options& options) : options_(options) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  start_ns_ = now.tv_sec * base::kNsPerSecond + now.tv_nsec;
  to_real_ns_ = start_ns_ - base::now_ns();
  utsname system{};
  uname(&system);
  PcapngWriter(text_, &interface_count_)
      .section("nupa capture " NUPA_VERSION, fmt::format("{} {}", system.sysname, system.release));
}

Result<Output> Output::open(const Options& options) {
  Output output(options);
  if (options.path == "-") {
    if (isatty(STDOUT_FILENO) != 0) return fail(EINVAL, "standard output is a terminal: give -w a file, or a pipe");
    output.fd_.reset(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!output.fd_) return base::fail_call(errno, "cannot duplicate standard output");
  } else {
    output.fd_.reset(::open(options.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnerOnly));
    if (!output.fd_) return base::fail_call(errno, "cannot write ", options.path);
  }
  struct stat status {};
  output.is_pipe_ = fstat(output.fd_.get(), &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
  return output;
}

Output::Interface& Output::interface_of(const std::string& device, const std::string& transport) {
  const auto [found, is_new] = interfaces_.try_emplace({device, transport});
  if (is_new)
    found->second.number =
        PcapngWriter(text_, &interface_count_)
            .interface(device + "/" + transport, fmt::format("NUPA device {}, transport {}", device, transport),
                       options_.snaplen);
  return found->second;
}

void Output::write(CapturedPacket&& packet) {
  const capture::Crc crc = capture::complete_frame(packet.record, packet.bytes);
  Interface& interface = interface_of(packet.device, packet.transport);
  ++interface.received;
  const std::string comment = comment_of(packet, crc);
  PcapngWriter(text_, &interface_count_)
      .packet({.interface = interface.number,
               .time_ns = real_time(packet.record.time_ns),
               .direction = packet.record.direction,
               .length = packet.record.length,
               .comment = comment},
              packet.bytes);
}

bool Output::take(std::vector<CapturedPacket>&& packets) {
  for (CapturedPacket& packet : packets) {
    if (options_.count != 0 && taken_ == options_.count) return false;
    ++taken_;
    if (options_.ring == 0) {
      write(std::move(packet));
      continue;
    }
    if (kept_.size() == options_.ring) kept_.pop_front();
    kept_.push_back(std::move(packet));
  }
  return options_.count == 0 || taken_ < options_.count;
}

void Output::add_dropped(const std::vector<DroppedPackets>& dropped) {
  for (const DroppedPackets& each : dropped) interface_of(each.device, each.transport).dropped += each.count;
}

uint64_t Output::dropped() const {
  uint64_t count = 0;
  for (const auto& [name, interface] : interfaces_) count += interface.dropped;
  return count;
}

void Output::write_kept() {
  for (CapturedPacket& packet : kept_) write(std::move(packet));
  kept_.clear();
}

void Output::finish() {
  write_kept();
  const int64_t end_ns = real_time(base::now_ns());
  for (const auto& [name, interface] : interfaces_)
    PcapngWriter(text_, &interface_count_)
        .statistics({.interface = interface.number,
                     .start_ns = start_ns_,
                     .end_ns = end_ns,
                     .received = interface.received + interface.dropped,
                     .dropped = interface.dropped});
}

Result<void> Output::flush(int stop) {
  // A pipe takes this much without waiting if it has room at all (pipe(7)).
  constexpr size_t kPortion = 4096;
  size_t done = 0;
  Result<void> result;
  while (done < text_.size()) {
    if (is_pipe_) {
      pollfd ready[] = {{fd_.get(), POLLOUT, 0}, {stop, POLLIN, 0}};
      [[maybe_unused]] const auto woken =
          progress::wait_descriptors(ready, progress::Deadline::never(), progress::Signals::kIgnore);
      if (ready[0].revents == 0 && ready[1].revents != 0) {
        result = fail(EINTR, "the reader of the pipe does not read");
        break;
      }
    }
    const size_t portion = is_pipe_ ? std::min(kPortion, text_.size() - done) : text_.size() - done;
    const ssize_t written = ::write(fd_.get(), &text_[done], portion);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      result = base::fail_call(errno, "cannot write ", options_.path == "-" ? "standard output" : options_.path);
      break;
    }
    done += static_cast<size_t>(written);
  }
  text_.erase(0, done);
  return result;
}

}  // namespace nupa::cli
