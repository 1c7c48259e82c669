#pragma once

#include <string_view>

#include "engine/text/jinja_ast.h"

namespace lockstep::text::jinja {

/// Parses a template. Constants are paid for by `heap`, which must outlive the body.
/// @throws TemplateError of kind TemplateSyntaxError or TemplateAssertionError (an unknown filter or test), with the line.
Body parse(Heap& heap, std::string_view source);

}  // namespace lockstep::text::jinja
