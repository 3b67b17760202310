// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "capture/file/pcapng.h"
#include "cli/capture/sources.h"
#include <nupa/result.h>

namespace nupa::cli {

/// Puts packets of several rings into the order of their times. A packet waits, so that packets of other rings with
/// earlier times come before it.
class PacketOrder {
 public:
  void add(CapturedPacket&& packet) { waiting_.push_back(std::move(packet)); }
  /// Takes the packets from before `until_ns` in order.
  std::vector<CapturedPacket> take(int64_t until_ns);

 private:
  std::vector<CapturedPacket> waiting_;
};

/// Where packets go: a pcapng file or a pipe, or the last ones in memory first.
class Output {
 public:
  struct Options {
    std::string path;    ///< "-": standard output
    uint64_t count = 0;  ///< 0: no limit
    uint64_t ring = 0;   ///< packets that are kept in memory; 0: they are written at once
    uint32_t snaplen = 0;
  };
  /// Errors of open(2). EINVAL: standard output is a terminal.
  static Result<Output> open(const Options& options);

  /// Takes the packets, and writes them or keeps them. Returns false if the count is complete.
  bool take(std::vector<CapturedPacket>&& packets);
  void add_dropped(const std::vector<DroppedPackets>& dropped);
  /// Writes the packets that are kept.
  void write_kept();
  /// Writes the packets that are kept, and the statistics.
  void finish();
  /// Writes what was made so far to the descriptor. `stop`: a descriptor that ends the wait for a pipe with room.
  /// EPIPE, ENOSPC and other errors of write(2); EINTR: `stop` was readable.
  Result<void> flush(int stop);

  uint64_t taken() const { return taken_; }
  uint64_t dropped() const;
  bool is_pipe() const { return is_pipe_; }
  /// The descriptor, for the end of a pipe's reader.
  int fd() const { return fd_.get(); }

 private:
  struct Interface {
    uint32_t number = 0;
    uint64_t received = 0;
    uint64_t dropped = 0;
  };
  explicit Output(const Options& options);
  Interface& interface_of(const std::string& device, const std::string& transport);
  void write(CapturedPacket&& packet);
  int64_t real_time(int64_t monotonic_ns) const { return monotonic_ns + to_real_ns_; }

  Options options_;
  base::UniqueFd fd_;
  bool is_pipe_ = false;
  int64_t to_real_ns_ = 0;
  int64_t start_ns_ = 0;
  std::string text_;
  uint32_t interface_count_ = 0;
  std::map<std::pair<std::string, std::string>, Interface> interfaces_;
  std::deque<CapturedPacket> kept_;
  uint64_t taken_ = 0;
};

}  // namespace nupa::cli
