// SPDX-License-Identifier: Apache-2.0
#include "ccl/diagnostics/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace nupa::ccl {
namespace {

constexpr mode_t kMode = 0644;
/// The end of the array. It has an element without a meaning, because the elements before it end with a comma.
constexpr char kEnd[] = "{\"name\":\"end\",\"ph\":\"M\",\"pid\":0,\"args\":{}}\n]\n";

std::string host() {
  char name[65] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::string path_of(std::string name, uint32_t rank) {
  struct stat about {};
  if (stat(name.c_str(), &about) == 0 && S_ISDIR(about.st_mode)) name += "/rank-%r.json";
  if (name.find("%r") == std::string::npos && name.find("%p") == std::string::npos) name += ".%r";
  const auto replace = [&](const char* what, const std::string& by) {
    for (size_t at = 0; (at = name.find(what, at)) != std::string::npos; at += by.size()) name.replace(at, 2, by);
  };
  replace("%r", std::to_string(rank));
  replace("%p", std::to_string(getpid()));
  replace("%h", host());
  return name;
}

/// Returns 0 or an errno value.
int write_at(int fd, const std::string& text, off_t at) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = pwrite(fd, text.data() + done, text.size() - done, at + static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    done += static_cast<size_t>(written);
  }
  return 0;
}

}  // namespace

Result<TraceFile> TraceFile::open(const std::string& name, uint32_t rank) {
  std::string path = path_of(name, rank);
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!fd) {
    const int error = errno;
    return fail(error, path + ": " + std::strerror(error));
  }
  TraceFile file(std::move(path), std::move(fd));
  file.end_ = 2;
  file.report(write_at(file.fd_.get(), std::string("[\n") + kEnd, 0));
  return file;
}

void TraceFile::report(int error) {
  failed_ = error != 0;
  if (failed_)
    std::fprintf(stderr, "nupa: ccl: the trace is incomplete: %s: %s\n", path_.c_str(), std::strerror(error));
}

void TraceFile::write(const std::string& elements) {
  if (failed_ || elements.empty()) return;
  const int error = write_at(fd_.get(), elements + kEnd, end_);
  end_ += static_cast<off_t>(elements.size());
  report(error);
}

}  // namespace nupa::ccl
