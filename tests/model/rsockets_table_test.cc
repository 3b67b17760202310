// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "shadow.h"
#include "expect.h"

// The lines that are checked.
#include "rsockets/descriptor_table.cc"

namespace nupa::rsockets {
namespace {

using model::Build;
using model::Case;

constexpr int kNumber = 7;

/// An rsocket that notes whether it is there. At the same place each time.
class Placed final : public Socket {
 public:
  Placed() : Socket(AF_INET, SOCK_STREAM) {
    model::note_access(&used_, sizeof used_, true);
    destroyed.store(false, std::memory_order_relaxed);
  }
  ~Placed() override {
    model::note_access(&used_, sizeof used_, true);
    destroyed.store(true, std::memory_order_relaxed);
  }
  static void* operator new(size_t) { return place; }
  static void operator delete(void*) {}

  void use() {
    model::note_access(&used_, sizeof used_, false);
    model::require(!destroyed.load(std::memory_order_relaxed), "the rsocket is there");
  }

  int fd() const override { return kNumber; }
  int bind(const sockaddr*, socklen_t) override { return 0; }
  int listen(int) override { return 0; }
  int accept(Socket**) override { return 0; }
  int connect(const sockaddr*, socklen_t) override { return 0; }
  int shutdown(int) override { return 0; }
  void close() override {}
  ssize_t send(Pieces, int, const sockaddr*, socklen_t) override { return 0; }
  ssize_t receive(Pieces, int, sockaddr*, socklen_t*) override { return 0; }
  int local_name(sockaddr*, socklen_t*) override { return 0; }
  int peer_name(sockaddr*, socklen_t*) override { return 0; }
  int set_option(int, int, const void*, socklen_t) override { return 0; }
  int get_option(int, int, void*, socklen_t*) override { return 0; }
  size_t readable_bytes() override { return 0; }
  short ready(short) override { return 0; }
  void arm(::std::vector<pollfd>*) override {}
  void wake(int) override {}

 private:
  static std::atomic<bool> destroyed;
  static char place[];
  char used_ = 0;
};
std::atomic<bool> Placed::destroyed;
alignas(64) char Placed::place[sizeof(Placed)];

DescriptorTable table;

void add() { model::require(table.add(::std::make_unique<Placed>()) == 0, "there is a place"); }
void call(Use use) {
  if (const DescriptorTable::Lease lease = table.lease(kNumber, use)) static_cast<Placed*>(lease.get())->use();
}

void closes_beside_calls(Case& made, ::std::initializer_list<Use> uses) {
  table.forget_all();
  add();
  for (const Use use : uses) made.thread("caller", [use] { call(use); });
  made.thread("closer", [] { model::require(table.close(kNumber) == 0, "it is closed once"); });
}
void closes_beside_a_call(Case& made) { closes_beside_calls(made, {Use::kSend}); }
void closes_beside_two_calls(Case& made) { closes_beside_calls(made, {Use::kSend, Use::kReceive}); }

void adds_beside_a_call(Case& made) {
  add();  // so that the table has its memory
  table.forget_all();
  made.thread("adder", [] { add(); });
  made.thread("caller", [] { call(Use::kOther); });
}

TEST(ModelRsocketsTable, Close_BesideACall_DestroysAfterIt) { model::expect_holds(closes_beside_a_call); }
TEST(ModelRsocketsTable, Close_BesideTwoCalls_DestroysAfterThem) { model::expect_holds(closes_beside_two_calls); }
TEST(ModelRsocketsTable, Add_BesideACall_ShowsAWholeRsocket) { model::expect_holds(adds_beside_a_call); }

TEST(ModelRsocketsTable, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {closes_beside_a_call, adds_beside_a_call};
  EXPECT_EQ(model::needed_orders(cases, {"rsockets/descriptor_table.cc"}),
            (::std::vector<::std::string>{
                "Lease::~Lease fetch_sub release: x86 relaxed, C++ release",
                "DescriptorTable::slot load acquire: x86 relaxed, C++ relaxed",
                "DescriptorTable::lease load relaxed: x86 relaxed, C++ relaxed",
                "DescriptorTable::lease fetch_add seq_cst: x86 relaxed, C++ seq_cst",
                "DescriptorTable::lease load seq_cst: x86 relaxed, C++ seq_cst",
                "DescriptorTable::lease fetch_sub release: x86 relaxed, C++ relaxed",
                "DescriptorTable::add load acquire: x86 relaxed, C++ relaxed",
                "DescriptorTable::add store release: x86 relaxed, C++ release",
                "DescriptorTable::close exchange seq_cst: x86 relaxed, C++ seq_cst",
                "DescriptorTable::close load seq_cst: x86 relaxed, C++ seq_cst",
            }));
}

}  // namespace
}  // namespace nupa::rsockets
