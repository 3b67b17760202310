// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous_address.h"
#include "ccl/bootstrap/wait_notice.h"
#include "progress/waiter.h"

namespace nupa::ccl {
namespace {

tl::unexpected<Error> failed(int error, const std::string& path) {
  return fail(error, "rendezvous file " + path + ": " + std::strerror(error));
}

/// Replaces the file atomically, so that no rank reads a part of it. Only this user may read it.
Result<void> write_file(const std::string& path, const std::string& text) {
  std::string beside = path + ".XXXXXX";
  const base::UniqueFd fd(mkostemp(beside.data(), O_CLOEXEC));
  if (!fd) return failed(errno, beside);
  const bool written = write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       fsync(fd.get()) == 0 && rename(beside.c_str(), path.c_str()) == 0;
  if (written) return {};
  const int error = errno;
  unlink(beside.c_str());
  return failed(error, path);
}

/// Returns an empty text if there is no file.
Result<std::string> read_file(const std::string& path) {
  const base::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // ESTALE: on a network file system, the file may have been replaced while it was opened.
  if (!fd && (errno == ENOENT || errno == ESTALE)) return std::string();
  if (!fd) return failed(errno, path);
  struct stat about;
  if (fstat(fd.get(), &about) != 0) return failed(errno, path);
  if (about.st_uid != geteuid()) return fail(EACCES, "rendezvous file " + path + " belongs to another user");
  char text[2 * UniqueId::kBytes + 1];
  const ssize_t length = read(fd.get(), text, sizeof text);
  if (length < 0 && errno != ESTALE) return failed(errno, path);
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(length, 0)));
}

Result<RendezvousResult> be_first(const std::string& path, uint32_t world, const PeerInfoBytes& peer_info,
                                  int64_t limit_ns) {
  auto server = RendezvousServer::start(limit_ns);
  if (!server) return tl::unexpected(server.error());
  const std::string text = (*server)->id().text();
  if (auto written = write_file(path, text); !written) return tl::unexpected(written.error());
  auto joined = join_own_rendezvous(**server, world, peer_info, limit_ns);
  if (const auto left = read_file(path); left && *left == text) unlink(path.c_str());
  return joined;
}

/// True for errors of a server of an earlier job: nothing listens there any more, or another program does.
bool is_of_the_past(int error) { return error == ECONNREFUSED || error == ECONNABORTED || error == EALREADY; }

}  // namespace

Result<RendezvousResult> join_rendezvous_by_file(const RendezvousAddress& place, uint32_t rank, uint32_t world,
                                                 const PeerInfoBytes& peer_info, int64_t limit_ns) {
  const std::string& path = place.path;
  if (rank == 0) return be_first(path, world, peer_info, limit_ns);
  const int64_t end = base::now_ns() + limit_ns;
  WaitNotice notice(rank);
  std::string past;
  while (base::now_ns() < end) {
    const auto text = read_file(path);
    if (!text) return tl::unexpected(text.error());
    const auto id = UniqueId::from_text(*text);
    if (!id || *text == past) {
      notice.look("rank 0, which writes the rendezvous file " + path);
      progress::sleep_for(kServerPauseNs);
      continue;
    }
    // Another program may listen at the address of an earlier job's server and never answer.
    const auto is_newest = [&] {
      const auto now = read_file(path);
      return !now || now->empty() || *now == *text;
    };
    auto joined = join_rendezvous(*id, 0, rank, world, peer_info,
                                  {end - base::now_ns(), limit_ns + kAnswerNs, 0, is_newest, &notice});
    if (joined) return joined;
    if (is_of_the_past(joined.error().code()))
      past = *text;
    else if (joined.error().code() != ECANCELED)
      return fail(joined.error().code(), "rendezvous file " + path + ": " + joined.error().what());
  }
  return fail(ETIMEDOUT, "rank 0 did not join: rendezvous file " + path +
                             (past.empty() ? " names no server" : " names a server that has exited"));
}

}  // namespace nupa::ccl
