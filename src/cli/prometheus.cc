// SPDX-License-Identifier: Apache-2.0
#include "cli/prometheus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/unique_fd.h"

namespace nupa::cli {
namespace {

struct Metric {
  const char* field;  ///< of a row
  const char* name;
  const char* help;
};
constexpr Metric kCounters[] = {
    {"messages", "nupa_sent_messages_total", "Messages that queue pairs have sent."},
    {"bytes", "nupa_sent_bytes_total", "Bytes of these messages."},
    {"received", "nupa_received_messages_total", "Messages that took a receive."},
    {"errors", "nupa_errors_total", "Requests that ended with an error."},
    {"rnr", "nupa_receiver_not_ready_total", "Times that a peer had no receive."},
};
constexpr const char* kQueuePairs = "nupa_queue_pairs";

/// A label's value may hold anything, and three characters are escaped.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char at : text) {
    if (at == '\n') {
      out += "\\n";
      continue;
    }
    if (at == '\\' || at == '"') out += '\\';
    out += at;
  }
  return out;
}

std::string labels_of(const nlohmann::json& row) {
  std::string out = fmt::format("pid=\"{}\"", row["pid"].get<int>());
  for (const char* label : {"command", "device", "type", "state", "transport"})
    out += fmt::format(",{}=\"{}\"", label, escaped(row[label].get<std::string>()));
  return out;
}

void head(std::string* out, const char* name, const char* help, const char* type) {
  *out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

}  // namespace

std::string prometheus_text(const nlohmann::json& rows) {
  struct Sum {
    uint64_t queue_pairs = 0;
    uint64_t counters[std::size(kCounters)] = {};
  };
  std::map<std::string, Sum> sums;
  for (const auto& row : rows) {
    Sum& sum = sums[labels_of(row)];
    ++sum.queue_pairs;
    for (size_t i = 0; i < std::size(kCounters); ++i) sum.counters[i] += row[kCounters[i].field].get<uint64_t>();
  }
  std::string out;
  head(&out, kQueuePairs, "Queue pairs that exist.", "gauge");
  for (const auto& [labels, sum] : sums) out += fmt::format("{}{{{}}} {}\n", kQueuePairs, labels, sum.queue_pairs);
  for (size_t i = 0; i < std::size(kCounters); ++i) {
    head(&out, kCounters[i].name, kCounters[i].help, "counter");
    for (const auto& [labels, sum] : sums)
      out += fmt::format("{}{{{}}} {}\n", kCounters[i].name, labels, sum.counters[i]);
  }
  return out;
}

int replace_file(const std::string& path, const std::string& text) {
  // In the same folder, so that it can be renamed; collectors read names that end with .prom.
  const std::string next = fmt::format("{}.{}.tmp", path, getpid());
  base::UniqueFd file(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return errno;
  int error = 0;
  for (size_t done = 0; done < text.size() && error == 0;) {
    const ssize_t wrote = write(file.get(), text.data() + done, text.size() - done);
    if (wrote > 0)
      done += static_cast<size_t>(wrote);
    else if (wrote == 0 || errno != EINTR)
      error = wrote == 0 ? ENOSPC : errno;
  }
  if (error == 0 && rename(next.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) unlink(next.c_str());
  return error;
}

}  // namespace nupa::cli
