#pragma once
#include <charconv>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace nupa {

/// Why a call failed: an errno value and one line of text for a person. A copy takes no allocation and does not throw.
class Error {
 public:
  static constexpr const char* kNoMemory = "no memory for the reason";

  /// `sentence` is constant text in static storage: this takes no allocation.
  Error(int code, const char* sentence) noexcept : code_(code), sentence_(sentence) {}

  /// A text that names the object concerned. Where memory for it is lacking, the errno value stays and what() says so.
  Error(int code, std::string text) noexcept : code_(code), sentence_(kNoMemory) {
    try {
      text_ = std::make_shared<const std::string>(std::move(text));
    } catch (const std::bad_alloc&) {
      return;
    }
    sentence_ = text_->c_str();
  }

  int code() const noexcept { return code_; }

  /// Never null. Valid as long as this Error or a copy of it: an Error of another errno value and the same text is made
  /// by with_code(), never from this pointer.
  const char* what() const noexcept { return sentence_; }

  /// The same text under another errno value.
  Error with_code(int code) const noexcept {
    Error other = *this;
    other.code_ = code;
    return other;
  }

 private:
  int code_;
  const char* sentence_;
  std::shared_ptr<const std::string> text_;  ///< empty where the text is constant
};

/// A value, or the Error that stood in its way.
template <class T>
using Result = tl::expected<T, Error>;

/// Builds the failed side of a Result from constant text.
inline tl::unexpected<Error> fail(int code, const char* sentence) {
  return tl::unexpected<Error>(Error(code, sentence));
}

/// Builds the failed side of a Result from a text with the object concerned.
inline tl::unexpected<Error> fail(int code, std::string text) {
  return tl::unexpected<Error>(Error(code, std::move(text)));
}

/// A piece of an Error's text: words or a name, which are only pointed at, or a whole number.
class TextPart {
 public:
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> TextPart(const Text& text) : text_(text) {}
  template <std::integral Number>
  TextPart(Number number) : length_(std::to_chars(digits_, digits_ + sizeof digits_, number).ptr - digits_) {}

  std::string_view text() const { return length_ == 0 ? text_ : std::string_view(digits_, length_); }

 private:
  std::string_view text_;
  char digits_[24];
  size_t length_ = 0;
};

/// Builds the failed side of a Result from the parts of its text. They are joined here, after errno has been read for
/// `code`; where memory is lacking the errno value stays, and nothing is thrown.
[[gnu::cold, gnu::noinline]] inline tl::unexpected<Error> fail(int code, std::initializer_list<TextPart> parts) {
  try {
    std::string text;
    for (const TextPart& part : parts) text += part.text();
    return fail(code, std::move(text));
  } catch (const std::bad_alloc&) {
    return fail(code, Error::kNoMemory);
  }
}
template <class First, class Second, class... More>
tl::unexpected<Error> fail(int code, const First& first, const Second& second, const More&... more) {
  return fail(code, {TextPart(first), TextPart(second), TextPart(more)...});
}

/// Builds the failed side of a Result from an Error that has its errno value and its text.
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace nupa
