// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "capture/ring.h"
#include "host/runtime_dir.h"
#include <nupa/result.h>

namespace nupa::cli {

/// A packet outside of its ring.
struct CapturedPacket {
  capture::Record record;  ///< `bytes` of the ring are not valid any more
  std::vector<std::byte> bytes;
  int pid = 0;
  std::shared_ptr<const std::string> program;
  std::string device;
  std::string transport;
};

/// Packets of one device and transport that found no room in a ring.
struct DroppedPackets {
  std::string device;
  std::string transport;
  uint64_t count = 0;
};

/// The processes of the runtime directory that are captured. Their number changes while they start and exit.
class Sources {
 public:
  struct Options {
    std::vector<int> pids;  ///< empty: all processes
    capture::Filters filters;
    uint32_t ring_bytes = 0;
  };
  /// EEXIST: another capture of the folder runs. Errors of inotify.
  static Result<std::unique_ptr<Sources>> open(host::RuntimeDir& dir, const Options& options);
  ~Sources();
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;

  /// The descriptors to wait for: changes of the folder, and answers and ends of processes.
  std::vector<pollfd> descriptors() const;
  /// Finds processes that have started, and takes answers. `folder_changed`: the first descriptor was readable.
  void look(bool folder_changed);
  /// Calls `take` for each packet in the rings.
  void drain(const std::function<void(CapturedPacket&&)>& take);
  /// Packets dropped since the last call, by device and transport.
  std::vector<DroppedPackets> take_dropped();

  /// Processes that have answered so far, with those that have exited.
  uint32_t captured() const { return captured_; }
  /// Processes that were asked and have not answered.
  uint32_t unanswered() const;
  /// Processes that refused, each once.
  std::vector<int> take_refused() { return std::exchange(refused_, {}); }

 private:
  struct Process {
    ~Process();
    uint32_t slot = 0;
    host::RuntimeDir::SocketId id{};
    base::UniqueFd socket;
    int pid = 0;
    void* mapping = nullptr;
    capture::Ring ring;
    bool is_captured = false;
    bool has_ended = false;
    uint32_t tries = 0;
    int64_t next_try_ns = 0;  ///< 0: it was asked
    std::shared_ptr<const std::string> program;
    uint64_t dropped[capture::kMostDevices][capture::kMostTransports] = {};  ///< those that were reported
    uint64_t lost = 0;  ///< records that it did not finish, or that are not of the format
  };

  Sources(host::RuntimeDir& dir, const Options& options) : dir_(dir), options_(options) {}
  Result<void> start();
  void find_processes();
  void ask(Process& process);
  void take_answer(Process& process);
  void drain(Process& process, const std::function<void(CapturedPacket&&)>& take);
  void add_dropped(Process& process, std::vector<DroppedPackets>* all);
  bool wants(int pid) const;

  host::RuntimeDir& dir_;
  const Options options_;
  base::UniqueFd folder_;
  bool looks_again_ = false;  ///< a process was starting, or could not be connected to
  std::list<Process> processes_;
  std::map<uint32_t, host::RuntimeDir::SocketId> ignored_;  ///< by slot: processes that are not asked
  std::vector<DroppedPackets> dropped_;                     ///< of processes that have exited
  std::vector<int> refused_;
  uint32_t captured_ = 0;
};

}  // namespace nupa::cli
