# cmake -DOUT=FILE -DFOLDER=FOLDER -P embed.cmake: writes a header that holds the page's files as strings. The scripts
# become one, in the order in which they build on each other.
set(html page.html)
set(style page.css)
set(script format.js data.js theme.js layout.js draw.js panel.js overview.js details.js summary.js page.js)

set(text "// Made by weft/plan/draw/page/embed.cmake.\n#pragma once\n\n#include <string_view>\n\nnamespace weft {\n")
foreach(name html style script)
  string(APPEND text "\ninline constexpr std::string_view page_${name} =")
  foreach(file ${${name}})
    file(READ ${FOLDER}/${file} content)
    string(APPEND text "\n    R\"weftpage(${content})weftpage\"")
  endforeach()
  string(APPEND text ";\n")
endforeach()
string(APPEND text "\n}  // namespace weft\n")
file(WRITE ${OUT} "${text}")
