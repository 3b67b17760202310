#include "api/netdev/door.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cm/wire.h"

namespace nupa::netdev {
namespace {

constexpr char kPrefix[] = "net,";
/// The text of a message that carries a descriptor: the answer is in that file.
constexpr char kInFile[] = "file";

std::string name_of(const std::string& network, const std::string& node) { return kPrefix + network + "," + node; }

/// Empty: it is not there yet (errno is EAGAIN), or the peer closed the socket (errno is 0 or another error).
std::string receive_from(int socket) {
  std::string message(Door::kMaxMessage, '\0');
  errno = 0;
  const ssize_t length = ::recv(socket, message.data(), message.size(), MSG_DONTWAIT);
  message.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return message;
}

bool send_to(int socket, const std::string& message) {
  return ::send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(message.size());
}

/// A message with one descriptor.
struct Envelope {
  iovec text;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  Envelope(void* bytes, size_t length) : text{bytes, length} {
    header.msg_iov = &text;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = CMSG_LEN(sizeof(int));  // without the padding, which would hold another one
  }
  Envelope(const Envelope&) = delete;
  Envelope& operator=(const Envelope&) = delete;

  void put(int fd) {
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  base::UniqueFd take() {
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return {};
    int fd;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    return base::UniqueFd(fd);
  }
};

/// Where it cannot be sent, the guest sees the end of the connection.
void send_answer(int socket, const std::string& answer) {
  if (answer.size() <= Door::kMaxMessage) {
    send_to(socket, answer);
    return;
  }
  const base::UniqueFd file(memfd_create("nupa-net-answer", MFD_CLOEXEC));
  if (!file) return;
  for (size_t at = 0; at < answer.size();) {
    const ssize_t written = ::write(file.get(), answer.data() + at, answer.size() - at);
    if (written <= 0) return;
    at += static_cast<size_t>(written);
  }
  std::string text = kInFile;
  Envelope envelope(text.data(), text.size());
  envelope.put(file.get());
  ::sendmsg(socket, &envelope.header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Result<std::string> read_answer(int file) {
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_size <= 0 || status.st_size > static_cast<off_t>(Door::kMaxAnswer))
    return fail(EPROTO, "the node's answer is in no file");
  std::string answer(static_cast<size_t>(status.st_size), '\0');
  for (size_t at = 0; at < answer.size();) {
    const ssize_t taken = ::pread(file, answer.data() + at, answer.size() - at, static_cast<off_t>(at));
    if (taken <= 0) return fail(EPROTO, "the node's answer cannot be read from its file");
    at += static_cast<size_t>(taken);
  }
  return answer;
}

}  // namespace

Result<std::unique_ptr<Door>> Door::open(const std::string& network, const std::string& node) {
  std::unique_ptr<Door> door(new Door);
  auto dir = cm::RuntimeDir::open();
  if (!dir) return tl::unexpected(dir.error());
  door->dir_ = std::move(*dir);
  auto listener = door->dir_->claim_name(name_of(network, node));
  if (!listener) {
    if (listener.error().code() == EEXIST)
      return fail(EEXIST, "a node of this name is in the network already: ", node, " in ", network);
    return tl::unexpected(listener.error());
  }
  door->listener_ = std::move(*listener);
  door->name_ = name_of(network, node);
  door->epoll_ = base::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  door->again_ = base::UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!door->epoll_ || !door->again_ || !door->watch(door->again_.get()) || !door->watch(door->listener_.get()))
    return fail(errno, "the socket of node ", node, " cannot be watched");
  return door;
}

Door::~Door() {
  if (!name_.empty()) dir_->remove_name(name_);
}

bool Door::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Door::pause() {
  constexpr itimerspec kPause{{}, {0, 100'000'000}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  ::timerfd_settime(again_.get(), 0, &kPause, nullptr);
}

bool Door::serve_guest(base::UniqueFd& guest, const Answer& answer) {
  const std::string question = receive_from(guest.get());
  if (question.empty()) return errno != EAGAIN;
  if (const auto text = answer(question)) {
    send_answer(guest.get(), *text);
    return true;
  }
  // It may hang up while it waits, and must not keep the door readable then.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, guest.get(), nullptr);
  waiting_.push_back(std::move(guest));
  if (waiting_.size() > kMostGuests) waiting_.pop_front();
  return true;
}

void Door::answer_waiting(const std::string& answer) {
  for (const base::UniqueFd& guest : waiting_) send_answer(guest.get(), answer);
  waiting_.clear();
}

void Door::serve(const Answer& answer) {
  uint64_t times;
  if (::read(again_.get(), &times, sizeof times) > 0) watch(listener_.get());
  for (;;) {
    base::UniqueFd guest(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!guest) {
      if (base::is_out_of_descriptors(errno)) pause();
      break;
    }
    // A guest connects and then asks: its question may come later.
    if (!watch(guest.get())) continue;
    guests_.push_back(std::move(guest));
  }
  guests_.remove_if([&](base::UniqueFd& guest) { return serve_guest(guest, answer); });
  while (guests_.size() > kMostGuests) guests_.pop_front();
}

std::string Door::field(const std::string& message, const char* name) {
  const auto read = nlohmann::json::parse(message, nullptr, false);
  if (!read.is_object()) return {};
  const auto found = read.find(name);
  return found != read.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<std::pair<std::string, std::string>> Door::list(const std::string& network) {
  std::vector<std::pair<std::string, std::string>> nodes;
  auto dir = cm::RuntimeDir::open();
  if (!dir) return nodes;
  for (const std::string& name : (*dir)->names()) {
    if (!name.starts_with(kPrefix)) continue;
    const size_t comma = name.find(',', sizeof kPrefix - 1);
    if (comma == name.npos) continue;
    const std::string found = name.substr(sizeof kPrefix - 1, comma - sizeof kPrefix + 1);
    if (network.empty() || found == network) nodes.emplace_back(found, name.substr(comma + 1));
  }
  return nodes;
}

Result<base::UniqueFd> Door::begin_to_ask(const std::string& network, const std::string& node,
                                          const std::string& question) {
  auto dir = cm::RuntimeDir::open();
  if (!dir) return tl::unexpected(dir.error());
  auto socket = (*dir)->connect_name(name_of(network, node));
  if (!socket) return tl::unexpected(socket.error());
  if (!send_to(socket->get(), question)) return fail(errno, "node ", node, " of ", network, " cannot be asked");
  return socket;
}

Result<std::string> Door::take_answer(int asked) {
  std::string answer(kMaxMessage, '\0');
  Envelope envelope(answer.data(), answer.size());
  const ssize_t length = ::recvmsg(asked, &envelope.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length <= 0) return fail(ECONNRESET, "the node ended before it answered");
  if (const base::UniqueFd file = envelope.take()) return read_answer(file.get());
  answer.resize(static_cast<size_t>(length));
  if (answer == kInFile) return fail(EMFILE, "the file with the node's answer cannot be opened");
  return answer;
}

Result<std::string> Door::ask(const std::string& network, const std::string& node, const std::string& question,
                              int patience_ms) {
  auto asked = begin_to_ask(network, node, question);
  if (!asked) return tl::unexpected(asked.error());
  if (!cm::wait_readable(asked->get(), patience_ms))
    return fail(ETIMEDOUT, "node ", node, " of ", network, " does not answer");
  return take_answer(asked->get());
}

}  // namespace nupa::netdev
