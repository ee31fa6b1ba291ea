// Widget code and fonts come from the vendor folder next to this file, never from another host.
(function () {
  const here = document.currentScript.src.replace(/[^/]*$/, "") + "vendor/";
  requirejs.config({ baseUrl: here }); // require(["anywidget"]) loads vendor/anywidget.js
})();
